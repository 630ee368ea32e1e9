"""What a bank would answer, written as banks write it; nothing of ours is used."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

PAIN_10 = "urn:iso:std:iso:20022:tech:xsd:pain.002.001.10"
PAIN_03 = "urn:iso:std:iso:20022:tech:xsd:pain.002.001.03"
CAMT_053 = "urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"
CAMT_053_OLD = "urn:iso:std:iso:20022:tech:xsd:camt.053.001.02"
CAMT_054 = "urn:iso:std:iso:20022:tech:xsd:camt.054.001.08"


def status(
    end_to_end_id: str,
    code: str,
    *,
    amount: str | None = None,
    currency: str = "EUR",
    reason: str = "",
    words: str = "",
) -> str:
    """A transfer in a pain.002."""
    why = f"<StsRsnInf><Rsn><Cd>{reason}</Cd></Rsn><AddtlInf>{escape(words)}</AddtlInf></StsRsnInf>" if reason else ""
    ref = f'<OrgnlTxRef><Amt><InstdAmt Ccy="{currency}">{amount}</InstdAmt></Amt></OrgnlTxRef>' if amount else ""
    return (
        f"<TxInfAndSts><OrgnlEndToEndId>{end_to_end_id}</OrgnlEndToEndId><TxSts>{code}</TxSts>{why}{ref}</TxInfAndSts>"
    )


def pain_002(
    *statuses: str, message_id: str = "", group: str = "", payment: str = "", reason: str = "", namespace: str = PAIN_10
) -> bytes:
    why = f"<StsRsnInf><Rsn><Cd>{reason}</Cd></Rsn></StsRsnInf>" if reason else ""
    group_status = f"<GrpSts>{group}</GrpSts>{why}" if group else ""
    payments = f"<PmtInfSts>{payment}</PmtInfSts>{why}" if payment else ""
    block = (
        f"<OrgnlPmtInfAndSts><OrgnlPmtInfId>{message_id}</OrgnlPmtInfId>{payments}{''.join(statuses)}</OrgnlPmtInfAndSts>"
        if statuses or payment
        else ""
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Document xmlns="{namespace}"><CstmrPmtStsRpt>'
        f"<GrpHdr><MsgId>BANK-1</MsgId><CreDtTm>2026-12-02T10:00:00</CreDtTm></GrpHdr><OrgnlGrpInfAndSts>"
        f"<OrgnlMsgId>{message_id}</OrgnlMsgId><OrgnlMsgNmId>pain.001.001.09</OrgnlMsgNmId>{group_status}</OrgnlGrpInfAndSts>"
        f"{block}</CstmrPmtStsRpt></Document>"
    ).encode()


def tx(
    end_to_end_id: str,
    amount: str | None = None,
    *,
    currency: str = "EUR",
    returned: str = "",
    words: str = "",
    remittance: str = "",
) -> str:
    """A transfer within a booking of a camt."""
    value = f'<Amt Ccy="{currency}">{amount}</Amt>' if amount else ""
    back = f"<RtrInf><Rsn><Cd>{returned}</Cd></Rsn><AddtlInf>{escape(words)}</AddtlInf></RtrInf>" if returned else ""
    text = f"<RmtInf><Ustrd>{escape(remittance)}</Ustrd></RmtInf>" if remittance else ""
    return f"<TxDtls><Refs><EndToEndId>{end_to_end_id}</EndToEndId></Refs>{value}{text}{back}</TxDtls>"


def entry(
    amount: str,
    *transactions: str,
    credit: bool = False,
    state: str = "BOOK",
    reference: str = "",
    currency: str = "EUR",
    batch: str = "",
    day: str = "2026-12-02",
    old: bool = False,
) -> str:
    booked = state if old else f"<Cd>{state}</Cd>"
    whole = f"<Btch><PmtInfId>{batch}</PmtInfId></Btch>" if batch else ""
    details = f"<NtryDtls>{whole}{''.join(transactions)}</NtryDtls>" if transactions or batch else ""
    own = f"<AcctSvcrRef>{reference}</AcctSvcrRef>" if reference else ""
    return (
        f'<Ntry><Amt Ccy="{currency}">{amount}</Amt><CdtDbtInd>{"CRDT" if credit else "DBIT"}</CdtDbtInd><Sts>{booked}</Sts>'
        f"<BookgDt><Dt>{day}</Dt></BookgDt>{own}{details}</Ntry>"
    )


def camt(*entries: str, namespace: str = CAMT_053, number: str = "1") -> bytes:
    outer, inner = ("BkToCstmrStmt", "Stmt") if "053" in namespace else ("BkToCstmrDbtCdtNtfctn", "Ntfctn")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Document xmlns="{namespace}"><{outer}><GrpHdr><MsgId>S{number}</MsgId>'
        f"</GrpHdr><{inner}><Id>{number}</Id>{''.join(entries)}</{inner}></{outer}></Document>"
    ).encode()


def ach_returns(rows: Sequence[tuple[str, str, int]]) -> bytes:
    """A file of returns. Rows: reason (R03, C01), the trace number that was ours, cents."""
    lines = ["101 0210000211234567892612040900A094101GPUNEX INC             JPMORGAN CHASE"]
    lines.append("5200GPUNEX INC                          1123456789PPDPAYOUT    261204261204   1021000020000001")
    for number, (reason, trace, cents) in enumerate(rows, start=1):
        kind = "98" if reason.startswith("C") else "99"
        lines.append(f"621021000021000123456789     {cents:010d}REF            NOUR                    1{number:015d}")
        lines.append(f"7{kind}{reason}{trace}      02100002{'':44}{number:015d}")
    lines.append("8200" + "0" * 90)
    lines.append("9000001" + "0" * 48)
    return ("\n".join(line.ljust(94)[:94] for line in lines) + "\n").encode()
