"""Meters know what was given back of them: the service credits that were given before they kept count."""

from django.db import migrations

FORWARD = """
UPDATE billing_meter m SET refunded_micro = least(m.billed_gross_micro, c.micro)
FROM (
    SELECT t.reference, sum(t.amount_micro) AS micro FROM billing_transfer t JOIN billing_account d ON d.id = t.debit_id
    WHERE t.kind = 'credit' AND d.code = 'platform.credits' GROUP BY t.reference
) AS c WHERE c.reference = m.reference AND m.refunded_micro = 0
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0005_deposits")]
    operations = [migrations.RunSQL(FORWARD, migrations.RunSQL.noop)]
