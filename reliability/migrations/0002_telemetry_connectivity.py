from django.db import migrations, models
from django.db.models.deletion import PROTECT


class Migration(migrations.Migration):
    """Gaps told apart, outages that machines' silence shows, and how grave an event is."""

    dependencies = [("reliability", "0002_telemetry")]

    operations = [
        migrations.CreateModel(
            name="Gap",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("ended_at", models.DateTimeField(verbose_name="ended at")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("journalled", "network"),
                            ("reboot", "restart of the host"),
                            ("unknown", "machine down, or the agent"),
                            ("platform", "outage of the platform"),
                        ],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("boot_id", models.CharField(blank=True, max_length=64, verbose_name="boot id after it")),
                ("evidence", models.JSONField(default=dict, verbose_name="evidence")),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=PROTECT, related_name="gaps", to="providers.machine", verbose_name="machine"
                    ),
                ),
            ],
            options={
                "verbose_name": "gap",
                "verbose_name_plural": "gaps",
                "constraints": [
                    models.UniqueConstraint(fields=("machine", "started_at"), name="gap_once"),
                    models.CheckConstraint(
                        condition=models.Q(("ended_at__gte", models.F("started_at"))), name="gap_ends_later"
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="platformoutage",
            name="kind",
            field=models.CharField(
                choices=[("watch", "the platform did not run"), ("silence", "most machines fell silent at once")],
                default="watch",
                max_length=8,
                verbose_name="kind",
            ),
        ),
        migrations.AddField(
            model_name="platformoutage",
            name="ongoing",
            field=models.BooleanField(default=False, verbose_name="ongoing"),
        ),
        migrations.AddField(
            model_name="platformoutage",
            name="evidence",
            field=models.JSONField(default=dict, verbose_name="evidence"),
        ),
        migrations.AddConstraint(
            model_name="platformoutage",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ongoing", True)), fields=("ongoing",), name="one_ongoing_outage"
            ),
        ),
        migrations.AddField(
            model_name="healthevent",
            name="severity",
            field=models.CharField(
                choices=[
                    ("note", "for the record"),
                    ("application", "the program's own"),
                    ("degraded", "degraded"),
                    ("fatal", "fatal"),
                ],
                default="note",
                max_length=12,
                verbose_name="severity",
            ),
        ),
        migrations.AddIndex(
            model_name="healthevent",
            index=models.Index(
                condition=models.Q(("severity__in", ["degraded", "fatal"])),
                fields=["gpu", "-at"],
                name="health_event_of_gpu",
            ),
        ),
    ]
