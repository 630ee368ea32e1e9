"""What a file for the bank says, and what a transfer shall carry, stays as it was made: the bank may have it already."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION gpunex_bank_fixed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows keep what the bank was given: make a new one instead', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER bankfile_fixed BEFORE UPDATE ON payouts_bankfile FOR EACH ROW
    WHEN ((OLD.public_id, OLD.run_id, OLD.rail, OLD.message_id, OLD.sha256, OLD.created_by_id, OLD.created_at)
        IS DISTINCT FROM (NEW.public_id, NEW.run_id, NEW.rail, NEW.message_id, NEW.sha256, NEW.created_by_id, NEW.created_at))
    EXECUTE FUNCTION gpunex_bank_fixed();
CREATE TRIGGER bankfile_kept BEFORE DELETE ON payouts_bankfile FOR EACH ROW EXECUTE FUNCTION gpunex_bank_fixed();
CREATE TRIGGER banktransfer_fixed BEFORE UPDATE ON payouts_banktransfer FOR EACH ROW
    WHEN ((OLD.payout_id, OLD.end_to_end_id, OLD.currency, OLD.amount_cents, OLD.rate_id)
        IS DISTINCT FROM (NEW.payout_id, NEW.end_to_end_id, NEW.currency, NEW.amount_cents, NEW.rate_id)
        OR OLD.file_id IS NOT NULL AND (OLD.file_id, OLD.trace_number) IS DISTINCT FROM (NEW.file_id, NEW.trace_number))
    EXECUTE FUNCTION gpunex_bank_fixed();
CREATE TRIGGER banktransfer_kept BEFORE DELETE ON payouts_banktransfer FOR EACH ROW EXECUTE FUNCTION gpunex_bank_fixed();
"""
BACKWARD = """
DROP TRIGGER banktransfer_kept ON payouts_banktransfer;
DROP TRIGGER banktransfer_fixed ON payouts_banktransfer;
DROP TRIGGER bankfile_kept ON payouts_bankfile;
DROP TRIGGER bankfile_fixed ON payouts_bankfile;
DROP FUNCTION gpunex_bank_fixed();
"""


class Migration(migrations.Migration):
    dependencies = [("payouts", "0004_choices_and_checks")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
