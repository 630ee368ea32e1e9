"""A statement that was issued stays as it is: nobody edits or deletes one."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION gpunex_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows are frozen: write a new one instead of changing what was issued', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER statement_frozen BEFORE UPDATE OR DELETE ON billing_statement
    FOR EACH ROW EXECUTE FUNCTION gpunex_frozen();
"""
BACKWARD = """
DROP TRIGGER statement_frozen ON billing_statement;
DROP FUNCTION gpunex_frozen();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_money")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
