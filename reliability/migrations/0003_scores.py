import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

TRIGGERS = """
CREATE FUNCTION reliability_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% is append-only: what was recorded stays', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER availability_append_only BEFORE UPDATE OR DELETE ON reliability_availability
    FOR EACH ROW EXECUTE FUNCTION reliability_append_only();
CREATE TRIGGER excuse_append_only BEFORE UPDATE OR DELETE ON reliability_excuse
    FOR EACH ROW EXECUTE FUNCTION reliability_append_only();
CREATE TRIGGER terms_append_only BEFORE UPDATE OR DELETE ON reliability_scoreterms
    FOR EACH ROW EXECUTE FUNCTION reliability_append_only();
CREATE TRIGGER switch_append_only BEFORE UPDATE OR DELETE ON reliability_formulaswitch
    FOR EACH ROW EXECUTE FUNCTION reliability_append_only();
"""
UNDO = """
DROP TRIGGER availability_append_only ON reliability_availability;
DROP TRIGGER excuse_append_only ON reliability_excuse;
DROP TRIGGER terms_append_only ON reliability_scoreterms;
DROP TRIGGER switch_append_only ON reliability_formulaswitch;
DROP FUNCTION reliability_append_only();
"""
# Scores of version 1 were shown until now: they go on to count, and version 2 runs in their shadow until an admin switches.
FIRST_VERSION_GOES_ON = """
INSERT INTO reliability_formulaswitch (version, at, reason)
SELECT 1, now(), 'It counted before this version was installed.'
WHERE EXISTS (SELECT 1 FROM reliability_score WHERE version = 1);
"""


class Migration(migrations.Migration):
    """What scores rest on, with the time at which it was known: availability, pauses, excuses, terms; and versions of the formula."""

    dependencies = [
        ("providers", "0003_beats"),
        ("reliability", "0002_telemetry_connectivity"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Availability",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(verbose_name="from")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("available", "available"),
                            ("hidden", "hidden by its provider"),
                            ("draining", "draining"),
                            ("hung", "its driver hangs"),
                            ("failed", "failed"),
                            ("delisted", "below a floor"),
                            ("unmeasured", "has to be measured first"),
                            ("kept", "kept by its provider"),
                            ("gone", "no longer found on the host"),
                            ("unadmitted", "not admitted"),
                            ("paused", "paused by our team"),
                        ],
                        max_length=12,
                        verbose_name="state",
                    ),
                ),
            ],
            options={
                "verbose_name": "availability",
                "verbose_name_plural": "availability",
            },
        ),
        migrations.CreateModel(
            name="DailyUptime",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField(verbose_name="day")),
                ("declared_s", models.FloatField(verbose_name="declared, card-seconds")),
                ("excused_s", models.FloatField(verbose_name="excused, card-seconds")),
                ("available_s", models.FloatField(verbose_name="available, card-seconds")),
            ],
            options={
                "verbose_name": "day of uptime",
                "verbose_name_plural": "days of uptime",
            },
        ),
        migrations.CreateModel(
            name="Excuse",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("started_at", models.DateTimeField(verbose_name="from")),
                ("ended_at", models.DateTimeField(verbose_name="until")),
                ("reason", models.CharField(max_length=300, verbose_name="because")),
                ("recorded_at", models.DateTimeField(verbose_name="recorded at")),
            ],
            options={
                "verbose_name": "excused time",
                "verbose_name_plural": "excused times",
            },
        ),
        migrations.CreateModel(
            name="FormulaSwitch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveSmallIntegerField(verbose_name="version")),
                ("at", models.DateTimeField(verbose_name="from")),
                ("reason", models.CharField(max_length=300, verbose_name="because")),
            ],
            options={
                "verbose_name": "formula of the score",
                "verbose_name_plural": "formulas of the score",
            },
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("started_at", models.DateTimeField(verbose_name="from")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="until")),
                ("reason", models.CharField(max_length=300, verbose_name="because")),
            ],
            options={
                "verbose_name": "pause",
                "verbose_name_plural": "pauses",
            },
        ),
        migrations.CreateModel(
            name="ScoreTerms",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("effective_from", models.DateTimeField(unique=True, verbose_name="in force from")),
                ("half_life_days", models.PositiveSmallIntegerField(verbose_name="half-life, days")),
                ("window_days", models.PositiveSmallIntegerField(verbose_name="window, days")),
                ("notice_hours", models.PositiveSmallIntegerField(verbose_name="maintenance notice, hours")),
                ("budget_hours", models.PositiveSmallIntegerField(verbose_name="excused maintenance, hours a month")),
            ],
            options={
                "verbose_name": "terms of the score",
                "verbose_name_plural": "terms of the score",
            },
        ),
        migrations.AddField(
            model_name="connection",
            name="closed_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="end noticed at"),
        ),
        migrations.AddField(
            model_name="outcome",
            name="cards",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), default=list, verbose_name="GPUs"
            ),
        ),
        migrations.AddField(
            model_name="outcome",
            name="recorded_at",
            field=models.DateTimeField(null=True, verbose_name="recorded at"),
        ),
        migrations.AddField(
            model_name="platformoutage",
            name="recorded_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="recorded at"),
        ),
        migrations.AddField(
            model_name="score",
            name="margin",
            field=models.FloatField(null=True, verbose_name="margin, ±"),
        ),
        migrations.AddIndex(
            model_name="benchmark",
            index=models.Index(
                condition=models.Q(("state", "accepted")), fields=["gpu", "received_at"], name="benchmark_accepted"
            ),
        ),
        migrations.AddIndex(
            model_name="benchmark",
            index=models.Index(
                condition=models.Q(("state", "accepted")), fields=["-received_at"], name="benchmark_heard"
            ),
        ),
        migrations.AddIndex(
            model_name="connection",
            index=models.Index(fields=["-started_at"], name="connection_begun"),
        ),
        migrations.AddIndex(
            model_name="connection",
            index=models.Index(
                condition=models.Q(("closed_at__isnull", False)), fields=["-closed_at"], name="connection_closed"
            ),
        ),
        migrations.AddIndex(
            model_name="incident",
            index=models.Index(
                condition=models.Q(("reference__isnull", False)), fields=["reference"], name="incident_reference"
            ),
        ),
        migrations.AddIndex(
            model_name="incident",
            index=models.Index(
                condition=models.Q(("excused_at__isnull", False)), fields=["-excused_at"], name="incident_excused"
            ),
        ),
        migrations.AddIndex(
            model_name="outcome",
            index=models.Index(fields=["-recorded_at"], name="outcome_recorded"),
        ),
        migrations.AddIndex(
            model_name="score",
            index=models.Index(fields=["machine", "version", "-at"], name="score_of_version"),
        ),
        migrations.AddField(
            model_name="availability",
            name="gpu",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="availability",
                to="providers.gpu",
                verbose_name="GPU",
            ),
        ),
        migrations.AddField(
            model_name="dailyuptime",
            name="machine",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="days",
                to="providers.machine",
                verbose_name="machine",
            ),
        ),
        migrations.AddField(
            model_name="excuse",
            name="by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="by",
            ),
        ),
        migrations.AddField(
            model_name="excuse",
            name="machine",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="excuses",
                to="providers.machine",
                verbose_name="machine",
            ),
        ),
        migrations.AddField(
            model_name="formulaswitch",
            name="by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="by",
            ),
        ),
        migrations.AddField(
            model_name="pause",
            name="by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="paused by",
            ),
        ),
        migrations.AddField(
            model_name="pause",
            name="ended_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="ended by",
            ),
        ),
        migrations.AddField(
            model_name="pause",
            name="machine",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="pauses",
                to="providers.machine",
                verbose_name="machine",
            ),
        ),
        migrations.AddIndex(
            model_name="availability",
            index=models.Index(fields=["gpu", "-at", "-id"], name="availability_of_gpu"),
        ),
        migrations.AddIndex(
            model_name="availability",
            index=models.Index(fields=["-at"], name="availability_recent"),
        ),
        migrations.AddConstraint(
            model_name="dailyuptime",
            constraint=models.UniqueConstraint(fields=("machine", "day"), name="uptime_day_once"),
        ),
        migrations.AddIndex(
            model_name="excuse",
            index=models.Index(fields=["machine", "-ended_at"], name="excuse_of_machine"),
        ),
        migrations.AddIndex(
            model_name="excuse",
            index=models.Index(fields=["-recorded_at"], name="excuse_recorded"),
        ),
        migrations.AddConstraint(
            model_name="excuse",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended_at__gt", models.F("started_at"))), name="excuse_has_length"
            ),
        ),
        migrations.AddConstraint(
            model_name="excuse",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="excuse_has_reason"
            ),
        ),
        migrations.AddConstraint(
            model_name="formulaswitch",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="switch_has_reason"
            ),
        ),
        migrations.AddConstraint(
            model_name="pause",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)), fields=("machine",), name="one_open_pause"
            ),
        ),
        migrations.AddConstraint(
            model_name="pause",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="pause_has_reason"
            ),
        ),
        migrations.RunSQL("UPDATE reliability_outcome SET recorded_at = at", migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, UNDO),
        migrations.RunSQL(FIRST_VERSION_GOES_ON, migrations.RunSQL.noop),
    ]
