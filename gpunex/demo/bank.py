"""Payouts by bank in the demonstration: two providers with accounts that banks publish as examples, made-up rates, and one bank's answer.

On a day on which banks are open, one payout has settled and the other waits in its file; on other days both wait for the next such day.
"""

from datetime import datetime
from textwrap import dedent

from gpunex.accounts.models import Organisation, User
from gpunex.demo import people
from gpunex.kit.refusals import Refusal
from payouts import methods, runs
from payouts.bank import RAILS, details, files, imports, rates
from payouts.bank.sepa import as_text
from payouts.models import BankTransfer, Payout, PayoutPreference, PayoutRun, Rail

IN_EURO, IN_DOLLARS = "noc@polder.example", "ops@prairie.example"
SOURCE = "Demonstration, not a real rate"
RATES_MICRO = {"EUR": 1_085_000, "USD": 1_000_000}
REASON = "First payout of the demonstration"


def open_accounts(*, at: datetime) -> None:
    """Rates, and the accounts of the two providers who are paid by bank. Repeating it is harmless."""
    admin = _admin()
    for currency, micro in RATES_MICRO.items():
        if rates.newest(currency, at) is None:
            rates.enter(currency=currency, micro_per_unit=micro, source=SOURCE, quoted_at=at, by=admin, at=at)
    iban = "NL91ABNA0417164300"
    _open(
        IN_EURO,
        Rail.SEPA,
        details.sepa_details(name="Polder Systems BV", iban=iban, bic=""),
        masked=details.mask_iban(iban),
        country="NL",
        at=at,
    )
    number = "000123456789"
    _open(
        IN_DOLLARS,
        Rail.ACH,
        details.ach_details(
            name="Prairie Cloud LLC",
            holder=details.COMPANY,
            routing="021000021",
            account=number,
            account_type=details.CHECKING,
        ),
        masked=details.mask_account(number),
        country="US",
        at=at,
    )


def pay(*, at: datetime) -> None:
    """A payout for each of the two, its file if banks are open today, and the settlement of the one in euro."""
    admin = _admin()
    for email in (IN_EURO, IN_DOLLARS):
        organisation = _organisation(email)
        if organisation is None:
            continue
        if not Payout.objects.filter(organisation=organisation).exists():
            try:
                runs.pay_off_cycle(organisation=organisation, by=admin, reason=REASON, at=at)
            except Refusal:  # nothing was earned yet
                continue
        for run in PayoutRun.objects.filter(payouts__organisation=organisation, rail__in=RAILS):
            _hand_over(run, by=admin, at=at)


def _hand_over(run: PayoutRun, *, by: User, at: datetime) -> None:
    try:
        file = files.make(run=run, by=by, at=at).file
        if file is None or run.rail != Rail.SEPA or file.exported_at is not None:
            return
        files.mark_exported(file=file, by=by, at=at)
    except Refusal:  # its day is still to come
        return
    for transfer in file.transfers.all():
        imports.read_answer(data=_statement(transfer, at), filename="demonstration.camt.053.xml", by=by, at=at)


def _statement(transfer: BankTransfer, at: datetime) -> bytes:
    """A bank's statement with one booking, as camt.053.001.08."""
    amount = f'<Amt Ccy="{transfer.currency}">{as_text(transfer.amount_cents)}</Amt>'
    text = f"""\
        <?xml version="1.0" encoding="UTF-8"?>
        <Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"><BkToCstmrStmt>
        <GrpHdr><MsgId>DEMONSTRATION</MsgId></GrpHdr>
        <Stmt><Id>1</Id><Ntry>{amount}<CdtDbtInd>DBIT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts>
        <BookgDt><Dt>{at:%Y-%m-%d}</Dt></BookgDt><AcctSvcrRef>DEMO-{transfer.pk}</AcctSvcrRef>
        <NtryDtls><TxDtls><Refs><EndToEndId>{transfer.end_to_end_id}</EndToEndId></Refs>{amount}</TxDtls></NtryDtls>
        </Ntry></Stmt></BkToCstmrStmt></Document>
        """
    return dedent(text).encode()


def _open(email: str, rail: Rail, kept: dict[str, str], *, masked: str, country: str, at: datetime) -> None:
    organisation = _organisation(email)
    if organisation is None or methods.active_method(organisation, at, rail) is not None:
        return
    methods.keep_method(
        organisation=organisation,
        rail=rail,
        by=organisation.created_by,
        at=at,
        details=kept,
        masked=masked,
        country=country,
    )
    # At once, where a choice would count from the next period: the demonstration shows it from the first minute.
    PayoutPreference.objects.update_or_create(organisation=organisation, defaults={"rail": rail, "next_rail": ""})


def _organisation(email: str) -> Organisation | None:
    return Organisation.objects.filter(created_by__email=email).first()


def _admin() -> User:
    return User.objects.get(email=people.ADMIN.email)
