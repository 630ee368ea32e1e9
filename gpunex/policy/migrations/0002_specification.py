"""The numbers of the specification's table K, as rows an admin edits from then on."""

from django.db import migrations

from gpunex.policy.models import TIER_DEFAULTS


def seed(apps, schema_editor):
    apps.get_model("policy", "Policy").objects.get_or_create(pk=1)
    for tier, values in TIER_DEFAULTS.items():
        apps.get_model("policy", "TierPolicy").objects.get_or_create(tier=str(tier), defaults=values)


class Migration(migrations.Migration):
    dependencies = [("policy", "0001_initial")]
    operations = [migrations.RunPython(seed, migrations.RunPython.noop)]
