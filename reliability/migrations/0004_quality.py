import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


# Refusals were kept as sentences: their codes instead. What is off the market is an episode from now on.
CODES = """
UPDATE reliability_benchmark SET
    code = CASE
        WHEN reason LIKE '%is not a number above 0' THEN 'not_a_number'
        WHEN reason LIKE '%times what this card can reach' THEN 'above_peak_before'
        WHEN reason = 'the result lacks this GPU' THEN 'missing'
        ELSE '' END,
    details = CASE
        WHEN reason LIKE '%is not a number above 0' OR reason LIKE '%times what this card can reach'
            THEN jsonb_build_object('measure', split_part(reason, ' ', 1))
        ELSE details END
WHERE state = 'refused';
UPDATE reliability_benchmark SET reason = '' WHERE state = 'refused' AND code <> '';
"""
# As reliability.performance computes it.
POINTS = """
UPDATE reliability_benchmark SET absolute = 1000 * power(
    (fp16_tflops / 80) * (fp32_tflops / 20) * (tensor_tflops / 300) * (vram_read_gbps / 1500) * (vram_write_gbps / 1500), 0.2
)
WHERE state = 'accepted' AND least(fp16_tflops, fp32_tflops, tensor_tflops, vram_read_gbps, vram_write_gbps) > 0;
"""
EPISODES = """
INSERT INTO reliability_delisting (machine_id, gpu_id, floor, reason, started_at, told_at)
SELECT machine_id, id, 'performance', delisted_reason, delisted_at, delisted_at FROM providers_gpu
WHERE delisted_at IS NOT NULL AND delisted_reason ->> 'code' = 'performance';
INSERT INTO reliability_delisting (machine_id, gpu_id, floor, reason, started_at, told_at)
SELECT DISTINCT ON (machine_id) machine_id, NULL::bigint, 'machine', delisted_reason, delisted_at, delisted_at FROM providers_gpu
WHERE delisted_at IS NOT NULL AND removed_at IS NULL AND delisted_reason ->> 'code' = 'machine'
ORDER BY machine_id, delisted_at;
"""


class Migration(migrations.Migration):
    """Why a benchmark was asked for and refused; floors as episodes with waivers; anomalies; cases."""

    dependencies = [
        ("accounts", "0001_initial"),
        ("providers", "0004_card_uuids"),
        ("reliability", "0003_scores"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="benchmark",
            name="absolute",
            field=models.FloatField(null=True, verbose_name="performance across models, points"),
        ),
        migrations.AddField(
            model_name="benchmark",
            name="code",
            field=models.CharField(blank=True, max_length=24, verbose_name="code"),
        ),
        migrations.AddField(
            model_name="benchmark",
            name="setup",
            field=models.JSONField(default=dict, verbose_name="measured with"),
        ),
        migrations.AddField(
            model_name="benchmark",
            name="trigger",
            field=models.CharField(blank=True, max_length=10, verbose_name="asked for because"),
        ),
        migrations.CreateModel(
            name="Case",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("public_id", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("incident", "Appeal of an incident"),
                            ("floor", "Appeal of a delisting"),
                            ("benchmark", "Appeal of a benchmark"),
                            ("money", "Money"),
                            ("other", "Something else"),
                        ],
                        max_length=10,
                        verbose_name="about",
                    ),
                ),
                ("subject", models.CharField(max_length=120, verbose_name="subject")),
                ("reference", models.CharField(blank=True, max_length=80, verbose_name="reference")),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "waits for our answer"), ("answered", "answered"), ("closed", "closed")],
                        default="open",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("opened_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="opened at")),
                ("changed_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="last message at")),
                ("closed_at", models.DateTimeField(blank=True, null=True, verbose_name="closed at")),
                (
                    "opened_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="opened by",
                    ),
                ),
                (
                    "organisation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="cases",
                        to="accounts.organisation",
                        verbose_name="organisation",
                    ),
                ),
            ],
            options={
                "verbose_name": "case",
                "verbose_name_plural": "cases",
            },
        ),
        migrations.CreateModel(
            name="CaseMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("from_staff", models.BooleanField(default=False, verbose_name="from our team")),
                ("text", models.TextField(verbose_name="text")),
                ("at", models.DateTimeField(verbose_name="at")),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="author",
                    ),
                ),
                (
                    "case",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="messages",
                        to="reliability.case",
                        verbose_name="case",
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "ordering": ["at", "pk"],
            },
        ),
        migrations.CreateModel(
            name="Delisting",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "floor",
                    models.CharField(
                        choices=[
                            ("software", "software versions"),
                            ("machine", "network and SSD"),
                            ("performance", "benchmark"),
                            ("uptime", "uptime"),
                        ],
                        max_length=12,
                        verbose_name="floor",
                    ),
                ),
                ("reason", models.JSONField(default=dict, verbose_name="because")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended at")),
                ("told_at", models.DateTimeField(blank=True, null=True, verbose_name="told at")),
                (
                    "gpu",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="delistings",
                        to="providers.gpu",
                        verbose_name="GPU",
                    ),
                ),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="delistings",
                        to="providers.machine",
                        verbose_name="machine",
                    ),
                ),
            ],
            options={
                "verbose_name": "delisting",
                "verbose_name_plural": "delistings",
            },
        ),
        migrations.CreateModel(
            name="FloorWaiver",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "floor",
                    models.CharField(
                        choices=[
                            ("software", "software versions"),
                            ("machine", "network and SSD"),
                            ("performance", "benchmark"),
                            ("uptime", "uptime"),
                        ],
                        max_length=12,
                        verbose_name="floor",
                    ),
                ),
                ("reason", models.CharField(help_text="The provider reads it.", max_length=300, verbose_name="reason")),
                ("at", models.DateTimeField(verbose_name="waived at")),
                ("until", models.DateTimeField(verbose_name="until")),
                ("revoked_at", models.DateTimeField(blank=True, null=True, verbose_name="revoked at")),
                (
                    "by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="waived by",
                    ),
                ),
                (
                    "gpu",
                    models.ForeignKey(
                        blank=True,
                        help_text="empty: all GPUs of the machine",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="floor_waivers",
                        to="providers.gpu",
                        verbose_name="GPU",
                    ),
                ),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="floor_waivers",
                        to="providers.machine",
                        verbose_name="machine",
                    ),
                ),
                (
                    "revoked_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="revoked by",
                    ),
                ),
            ],
            options={
                "verbose_name": "floor waiver",
                "verbose_name_plural": "floor waivers",
            },
        ),
        migrations.CreateModel(
            name="Anomaly",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("duplicate_uuid", "one GPU on two machines"),
                            ("too_good", "benchmark too good for its own history"),
                            ("jump", "sudden jump between two benchmarks"),
                            ("clock", "clock off"),
                            ("gpu_count", "number of GPUs changed"),
                            ("many_machines", "many machines by one key in a day"),
                        ],
                        max_length=16,
                        verbose_name="kind",
                    ),
                ),
                ("evidence", models.JSONField(default=dict, verbose_name="evidence")),
                ("first_seen_at", models.DateTimeField(verbose_name="first seen at")),
                ("last_seen_at", models.DateTimeField(verbose_name="last seen at")),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "open"), ("dismissed", "dismissed"), ("confirmed", "confirmed")],
                        default="open",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("note", models.CharField(blank=True, max_length=300, verbose_name="note")),
                ("decided_at", models.DateTimeField(blank=True, null=True, verbose_name="decided at")),
                (
                    "by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="decided by",
                    ),
                ),
                (
                    "gpu",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="anomalies",
                        to="providers.gpu",
                        verbose_name="GPU",
                    ),
                ),
                (
                    "machine",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="anomalies",
                        to="providers.machine",
                        verbose_name="machine",
                    ),
                ),
            ],
            options={
                "verbose_name": "anomaly",
                "verbose_name_plural": "anomalies",
                "indexes": [models.Index(fields=["machine", "-last_seen_at"], name="anomaly_recent")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=("kind", "machine", "gpu"),
                        name="one_open_anomaly",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="case",
            index=models.Index(fields=["organisation", "-changed_at"], name="case_recent"),
        ),
        migrations.AddIndex(
            model_name="case",
            index=models.Index(condition=models.Q(("state", "open")), fields=["changed_at"], name="case_waiting"),
        ),
        migrations.AddIndex(
            model_name="casemessage",
            index=models.Index(fields=["case", "at"], name="case_message_order"),
        ),
        migrations.AddIndex(
            model_name="delisting",
            index=models.Index(fields=["machine", "-started_at"], name="delisting_recent"),
        ),
        migrations.AddConstraint(
            model_name="delisting",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)),
                fields=("machine", "gpu", "floor"),
                name="one_open_delisting",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="delisting",
            constraint=models.CheckConstraint(
                condition=models.Q(("ended_at", None), ("ended_at__gte", models.F("started_at")), _connector="OR"),
                name="delisting_ends_later",
            ),
        ),
        migrations.AddIndex(
            model_name="floorwaiver",
            index=models.Index(fields=["machine", "-until"], name="waiver_of_machine"),
        ),
        migrations.AddConstraint(
            model_name="floorwaiver",
            constraint=models.CheckConstraint(
                condition=models.Q(("until__gt", models.F("at"))), name="waiver_has_length"
            ),
        ),
        migrations.AddConstraint(
            model_name="floorwaiver",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="waiver_has_reason"
            ),
        ),
        migrations.CreateModel(
            name="MachineRisk",
            fields=[],
            options={
                "verbose_name": "machine by risk",
                "verbose_name_plural": "machines by risk",
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("providers.machine",),
        ),
        migrations.RunSQL(CODES, migrations.RunSQL.noop),
        migrations.RunSQL(POINTS, migrations.RunSQL.noop),
        migrations.RunSQL(EPISODES, migrations.RunSQL.noop),
    ]
