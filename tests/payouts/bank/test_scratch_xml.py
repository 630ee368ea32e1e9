import time, resource
def test_x():
    from payouts.bank import answers
    from gpunex.kit.refusals import Refusal
    NS='xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"'
    def t(name, data):
        s=time.time()
        try: r=answers.read(data); out=(r.format, len(r.lines))
        except Refusal as e: out=type(e).__name__
        except RecursionError as e: out="RECURSION"
        print(name, out, round(time.time()-s,2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss//1024, "MB", flush=True)
    t("billion", b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "x">]><Document %s/>' % NS.encode())
    t("xxe", b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><Document/>')
    t("utf16", ('<?xml version="1.0" encoding="UTF-16"?><Document %s/>'%NS).encode("utf-16"))
    t("utf7", ('<?xml version="1.0" encoding="UTF-7"?><Document %s/>'%NS).encode())
    t("idna", ('<?xml version="1.0" encoding="idna"?><Document %s/>'%NS).encode())
    t("nul", b"\0"*1000)
    t("deep in tx", (f'<Document {NS}><BkToCstmrStmt><Stmt><Ntry><Amt Ccy="EUR">1.00</Amt><NtryDtls><TxDtls><Refs><EndToEndId>X</EndToEndId></Refs>' + "<a>"*1_300_000 + "</a>"*1_300_000+'</TxDtls></NtryDtls></Ntry></Stmt></BkToCstmrStmt></Document>').encode())
    t("many entries", (f'<Document {NS}><BkToCstmrStmt><Stmt>' + '<Ntry><Amt Ccy="EUR">1</Amt></Ntry>'*250_000 + '</Stmt></BkToCstmrStmt></Document>').encode())
    t("many tx", (f'<Document {NS}><BkToCstmrStmt><Stmt><Ntry><Amt Ccy="EUR">1</Amt><NtryDtls>' + '<TxDtls/>'*1_000_000 + '</NtryDtls></Ntry></Stmt></BkToCstmrStmt></Document>').encode())
    t("attrs", (f'<Document {NS} ' + ' '.join(f'a{i}="1"' for i in range(700_000)) + '/>').encode())
    t("ach long", b"101" + b"x"*91 + b"\n" + b"799R03" + b" "*88 + b"\n" + b"9"+b"0"*93)
    t("big", b"<"*(11*1024*1024))
    for a in ("12.340000","12.34000","١٢.٣٤","+12","12,34","1_000.00"," 12.34 ","0x10","12.","999999999999999.99","1"*16): print(repr(a), answers.cents_of(a))
