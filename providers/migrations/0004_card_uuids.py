from django.db import migrations

# The NVML name is "GPU-" and lower-case hexadecimal; a card that was reported twice, in two cases, lives on as its first row.
ONE_CASE = """
UPDATE providers_gpu later SET removed_at = now()
WHERE later.removed_at IS NULL AND EXISTS (
    SELECT FROM providers_gpu earlier
    WHERE earlier.removed_at IS NULL AND earlier.id < later.id
        AND lower(substr(earlier.uuid, 5)) = lower(substr(later.uuid, 5))
);
UPDATE providers_gpu SET uuid = 'GPU-' || lower(substr(uuid, 5))
WHERE uuid LIKE 'GPU-%' AND uuid <> 'GPU-' || lower(substr(uuid, 5));
UPDATE providers_workload SET gpu_uuids = ARRAY(
    SELECT CASE WHEN one LIKE 'GPU-%' THEN 'GPU-' || lower(substr(one, 5)) ELSE one END
    FROM unnest(gpu_uuids) WITH ORDINALITY AS each (one, place) ORDER BY place
)
WHERE observed <> 'finished' AND gpu_uuids::text <> lower(gpu_uuids::text) AND EXISTS (
    SELECT FROM unnest(gpu_uuids) one WHERE one LIKE 'GPU-%' AND one <> 'GPU-' || lower(substr(one, 5))
);
"""


class Migration(migrations.Migration):
    """UUIDs of cards in one case."""

    dependencies = [("providers", "0003_beats")]
    operations = [migrations.RunSQL(ONE_CASE, migrations.RunSQL.noop)]
