"""An exchange rate that was entered stays as it is. Runs made before runs had a cap are cleared."""

from django.db import migrations

FORWARD = """
CREATE TRIGGER fxrate_frozen BEFORE UPDATE OR DELETE ON payouts_fxrate FOR EACH ROW EXECUTE FUNCTION gpunex_frozen();
UPDATE payouts_payoutrun SET cleared_at = coalesce(made_at, created_at);
"""
BACKWARD = "DROP TRIGGER fxrate_frozen ON payouts_fxrate;"


class Migration(migrations.Migration):
    dependencies = [("payouts", "0002_money"), ("billing", "0004_frozen")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
