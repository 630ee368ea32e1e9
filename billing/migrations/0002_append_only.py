"""The database keeps the books honest: transfers are never edited or deleted, nor is a deposit's money."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION gpunex_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows are append-only: correct a mistake by a transfer that reverses it', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER transfer_append_only BEFORE UPDATE OR DELETE ON billing_transfer
    FOR EACH ROW EXECUTE FUNCTION gpunex_append_only();
"""
BACKWARD = """
DROP TRIGGER transfer_append_only ON billing_transfer;
DROP FUNCTION gpunex_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
