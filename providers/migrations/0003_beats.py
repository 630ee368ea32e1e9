from django.db import migrations, models


class Migration(migrations.Migration):
    """What heartbeats write: no index in their way, and room in each page for the next version of a row."""

    dependencies = [("providers", "0002_catalogue")]

    operations = [
        migrations.RemoveIndex(model_name="machine", name="machine_last_seen"),
        migrations.AddField(
            model_name="machine",
            name="clock_candidate_ms",
            field=models.IntegerField(blank=True, null=True, verbose_name="clock perhaps ahead by, ms"),
        ),
        migrations.AddField(
            model_name="machine",
            name="unsettled_until",
            field=models.DateTimeField(blank=True, null=True, verbose_name="unsettled until"),
        ),
        migrations.RunSQL(
            "ALTER TABLE providers_machine SET (fillfactor = 60)", "ALTER TABLE providers_machine RESET (fillfactor)"
        ),
    ]
