"""Posting is a function of the database: one round trip, planned once a connection. ``billing.ledger.post_all`` alone calls it.

The accounts are locked by id before the insert takes its ids: the insert's one-time condition reads ``locked`` to its end first. A key
that is there, or is being written by somebody else, is left out after waiting for it. ``locked`` shows each row as it is under the lock;
no balance is changed where a floor would break, and the caller rolls the transfers back.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION gpunex_post(
    keys text[], debits bigint[], credits bigint[], amounts bigint[], kinds text[], refs text[], effective timestamptz[], actors bigint[],
    reasons text[], reversed bigint[], datas jsonb[], accounts bigint[], at timestamptz
) RETURNS TABLE (new_key varchar, new_id_or_needed bigint, have bigint) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH asked AS (
        SELECT * FROM unnest(keys, debits, credits, amounts, kinds, refs, effective, actors, reasons, reversed, datas) WITH ORDINALITY
            AS row (key, debit_id, credit_id, amount, kind, reference, effective_at, actor_id, reason, reverses_id, data, place)
    ), locked AS MATERIALIZED (
        SELECT a.id, a.balance_micro, a.floor_micro FROM billing_account a
        WHERE a.id = ANY(accounts) AND a.materialised ORDER BY a.id FOR NO KEY UPDATE
    ), posted AS (
        INSERT INTO billing_transfer AS t (key, debit_id, credit_id, amount_micro, kind, reference, effective_at, created_at, actor_id,
                                           reason, reverses_id, data)
        SELECT q.key, q.debit_id, q.credit_id, q.amount, q.kind, q.reference, q.effective_at, at, q.actor_id, q.reason, q.reverses_id, q.data
        FROM asked q WHERE (SELECT count(*) FROM locked) >= 0 ORDER BY q.place
        ON CONFLICT (key) DO NOTHING RETURNING t.id, t.key, t.debit_id, t.credit_id, t.amount_micro
    ), moved AS MATERIALIZED (
        SELECT s.account, sum(s.amount)::bigint AS amount FROM (
            SELECT p.debit_id AS account, -p.amount_micro AS amount FROM posted p
            UNION ALL SELECT p.credit_id, p.amount_micro FROM posted p
        ) AS s GROUP BY s.account
    ), short AS MATERIALIZED (
        SELECT -m.amount AS needed, l.balance_micro - l.floor_micro AS there FROM moved m JOIN locked l ON l.id = m.account
        WHERE m.amount < 0 AND l.balance_micro + m.amount < l.floor_micro
    ), balances AS (
        UPDATE billing_account a SET balance_micro = a.balance_micro + m.amount FROM moved m
        WHERE a.id = m.account AND a.materialised AND m.amount <> 0 AND NOT EXISTS (SELECT FROM short)
    )
    SELECT p.key, p.id, NULL::bigint FROM posted p UNION ALL SELECT NULL, s.needed, s.there FROM short s;
END $$;
"""
BACKWARD = """
DROP FUNCTION gpunex_post(
    text[], bigint[], bigint[], bigint[], text[], text[], timestamptz[], bigint[], text[], bigint[], jsonb[], bigint[], timestamptz
);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_given_back")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
