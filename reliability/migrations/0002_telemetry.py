from django.db import migrations, models
from django.db.models.deletion import CASCADE, DO_NOTHING

# Made and dropped by ``reliability.partitions`` from here on; the days and months of now are made at once.
TABLES = """
ALTER TABLE reliability_sample RENAME TO reliability_sample_unpartitioned;
ALTER INDEX sample_at_brin RENAME TO sample_at_brin_unpartitioned;

CREATE TABLE reliability_sample (
    gpu_id bigint NOT NULL,
    machine_id bigint NOT NULL,
    at timestamptz NOT NULL,
    temperature_c double precision,
    power_w double precision,
    utilization_pct double precision,
    fan_pct double precision,
    memory_used_mib integer CHECK (memory_used_mib >= 0),
    memory_total_mib integer CHECK (memory_total_mib >= 0),
    sm_clock_mhz integer CHECK (sm_clock_mhz >= 0),
    memory_clock_mhz integer CHECK (memory_clock_mhz >= 0),
    throttle_reasons jsonb NOT NULL,
    PRIMARY KEY (gpu_id, at)
) PARTITION BY RANGE (at);
CREATE INDEX sample_at_brin ON reliability_sample USING brin (at);

CREATE TABLE reliability_samplehour (
    gpu_id bigint NOT NULL,
    machine_id bigint NOT NULL,
    hour timestamptz NOT NULL,
    samples integer NOT NULL CHECK (samples >= 0),
    temperature_least double precision, temperature_mean double precision, temperature_most double precision,
    power_least double precision, power_mean double precision, power_most double precision,
    utilization_least double precision, utilization_mean double precision, utilization_most double precision,
    memory_least double precision, memory_mean double precision, memory_most double precision,
    held_back double precision NOT NULL,
    too_hot double precision NOT NULL,
    PRIMARY KEY (gpu_id, hour)
) PARTITION BY RANGE (hour);

DO $$
DECLARE
    today timestamp := date_trunc('day', now() AT TIME ZONE 'UTC');
    starts timestamp;
BEGIN
    FOR starts IN SELECT generate_series(today - interval '7 days', today + interval '3 days', interval '1 day') LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF reliability_sample FOR VALUES FROM (%L) TO (%L)',
            'reliability_sample_' || to_char(starts, 'YYYYMMDD'),
            starts AT TIME ZONE 'UTC', (starts + interval '1 day') AT TIME ZONE 'UTC'
        );
    END LOOP;
    FOR starts IN SELECT generate_series(
        date_trunc('month', today) - interval '1 month', date_trunc('month', today) + interval '1 month', interval '1 month'
    ) LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF reliability_samplehour FOR VALUES FROM (%L) TO (%L)',
            'reliability_samplehour_' || to_char(starts, 'YYYYMM'),
            starts AT TIME ZONE 'UTC', (starts + interval '1 month') AT TIME ZONE 'UTC'
        );
    END LOOP;
    -- What is older than a week was to be dropped anyway; what comes from a clock far ahead has no day.
    INSERT INTO reliability_sample (
        gpu_id, machine_id, at, temperature_c, power_w, utilization_pct, fan_pct, memory_used_mib, memory_total_mib,
        sm_clock_mhz, memory_clock_mhz, throttle_reasons
    )
    SELECT gpu_id, machine_id, at, temperature_c, power_w, utilization_pct, fan_pct, memory_used_mib, memory_total_mib,
        sm_clock_mhz, memory_clock_mhz, throttle_reasons
    FROM reliability_sample_unpartitioned
    WHERE at >= (today - interval '7 days') AT TIME ZONE 'UTC' AND at < (today + interval '4 days') AT TIME ZONE 'UTC';
END $$;

DROP TABLE reliability_sample_unpartitioned;
"""


def _reading(name: str) -> list[tuple[str, models.Field]]:
    return [(f"{name}_{part}", models.FloatField(null=True)) for part in ("least", "mean", "most")]


def _without_key(to: str, related_name: str) -> models.ForeignKey:
    return models.ForeignKey(
        db_constraint=False, db_index=False, on_delete=DO_NOTHING, related_name=related_name, to=to
    )


class Migration(migrations.Migration):
    """Telemetry by day, rolled up by hour. The ORM only reads these two tables."""

    dependencies = [("providers", "0003_beats"), ("reliability", "0001_initial")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(TABLES)],
            state_operations=[
                migrations.RemoveConstraint(model_name="sample", name="sample_once"),
                migrations.AddField(
                    model_name="sample",
                    name="pk",
                    field=models.CompositePrimaryKey(
                        "gpu_id", "at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                migrations.AlterField("sample", "gpu", _without_key("providers.gpu", "samples")),
                migrations.AlterField("sample", "machine", _without_key("providers.machine", "+")),
                migrations.RemoveField(model_name="sample", name="id"),
                migrations.CreateModel(
                    name="SampleHour",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "gpu_id", "hour", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("gpu", _without_key("providers.gpu", "sample_hours")),
                        ("machine", _without_key("providers.machine", "+")),
                        ("hour", models.DateTimeField()),
                        ("samples", models.PositiveIntegerField()),
                        *_reading("temperature"),
                        *_reading("power"),
                        *_reading("utilization"),
                        *_reading("memory"),
                        ("held_back", models.FloatField()),
                        ("too_hot", models.FloatField()),
                    ],
                    options={"verbose_name": "hour of samples", "verbose_name_plural": "hours of samples"},
                ),
            ],
        ),
        migrations.CreateModel(
            name="LateHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hour", models.DateTimeField()),
                ("machine", models.ForeignKey(on_delete=CASCADE, related_name="+", to="providers.machine")),
            ],
            options={
                "verbose_name": "late hour",
                "verbose_name_plural": "late hours",
                "constraints": [models.UniqueConstraint(fields=("machine", "hour"), name="late_hour_once")],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("until", models.DateTimeField(verbose_name="until")),
            ],
            options={
                "verbose_name": "rollup",
                "verbose_name_plural": "rollup",
                "constraints": [models.CheckConstraint(condition=models.Q(("pk", 1)), name="rollup_is_one_row")],
            },
        ),
    ]
