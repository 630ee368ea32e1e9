import uuid, json
from datetime import timedelta
import pytest
from django.test import Client
from django.urls import reverse, get_resolver, URLPattern, URLResolver
from django.utils import timezone
from billing import deposits, deposit_requests
from billing.models import *
from gpunex.accounts.models import *
from gpunex.policy.models import Policy
from payouts import runs, methods, returns
from payouts.models import *
from providers.models import Provider
from tests.billing.test_views import BACKEND, client_of
from tests.signin import confirm
from tests.wallets import connect_wallet
from tests.payouts.bank.conftest import sepa_account
from .conftest import USDC, connect, earn, fill, organisation, owned, person, run_until_done, provider_with

def patterns():
    def walk(r, pre="", ns=""):
        for p in r.url_patterns:
            if isinstance(p, URLResolver): yield from walk(p, pre + str(p.pattern), ns + (p.namespace + ":" if p.namespace else ""))
            else: yield pre + str(p.pattern), ns + (p.name or ""), p
    yield from walk(get_resolver())

WORDS = ("balance", "payout", "statement", "verify", "earnings", "api/v1")
def money():
    for path, name, p in patterns():
        if any(w in path for w in WORDS) and not path.startswith("admin"):
            yield "/" + path, name

@pytest.fixture
def org(at):
    o = organisation("p")
    Provider.objects.create(organisation=o, tier="community", approved_at=at, commitment_months=3)
    earn(o, 30*USDC, at=at); fill(o, 30*USDC, at=at); connect(o, at=at); sepa_account(o, at=at)
    return o

def test_walk(org, at, admin):
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at, amount_micro=USDC)
    req = deposit_requests.ask(organisation=org, amount_micro=USDC, by=org.created_by, at=at)
    chal = __import__("payouts.challenges", fromlist=["x"]).issue(organisation=org, address=str(__import__("solders.keypair", fromlist=["Keypair"]).Keypair().pubkey()), by=org.created_by, at=at)
    st = Statement.objects.get()
    ids = [payout.public_id, req.public_id, chal.public_id, st.public_id]
    viewer, member, stranger = person("v"), person("m"), organisation("s").created_by
    Membership.objects.create(user=viewer, organisation=org, role="viewer")
    Membership.objects.create(user=member, organisation=org, role="member")
    def cl(u, csrf=False, fresh=False):
        c = Client(enforce_csrf_checks=csrf); c.force_login(u, backend=BACKEND)
        if fresh: confirm(c, u)
        return c
    def snap():
        return (PayoutMethod.objects.count(), list(PayoutPreference.objects.values()), Payout.objects.count(), DepositRequest.objects.values_list("state").__str__(), PayoutMethod.objects.filter(removed_at__isnull=False).count())
    body = {"cadence": "monthly", "rail": "sepa", "how": "all", "amount": "5", "key": str(uuid.uuid4()), "country": "DE", "name": "X", "iban": "NL91ABNA0417164300", "address": "x", "signature": "y"}
    seen = []
    for path, name in money():
        urls = [path.replace("<uuid:public_id>", str(i)) for i in ids] if "<uuid:public_id>" in path else [path]
        for url in urls:
            if "<" in url: print("skip", url); continue
            s = snap()
            r1 = cl(org.created_by, csrf=True, fresh=True).post(url, body)
            assert r1.status_code in (403, 404, 405), (url, r1.status_code)
            assert snap() == s, url
            for hdr in ({}, {"HTTP_HX_REQUEST": "true"}):
                for ct in ("form", "json"):
                    c = cl(org.created_by)
                    r = c.post(url, body, **hdr) if ct == "form" else c.post(url, json.dumps(body), content_type="application/json", **hdr)
                    if snap() != s:
                        seen.append((url, "NOT FRESH changed", hdr, ct)); s = snap()
            for who in (viewer, member):
                c = cl(who, fresh=True); session = c.session; session["organisation"] = str(org.public_id); session.save()
                for u in (url,):
                    c.post(u, body)
                if snap() != s: seen.append((url, who.full_name, "changed")); s = snap()
            r = cl(stranger, fresh=True).get(url)
            seen.append((url, "stranger GET", r.status_code)) if r.status_code == 200 and len(urls) > 1 else None
            r = Client().get(url)
            if r.status_code == 200: seen.append((url, "anon", 200))
    for x in seen: print(x)

def test_api(org, at):
    c = client_of(org)
    for q in ("page=0", "page=-1", "page=99999999999999999999999", "per_page=100000", "per_page=0", "page=abc", "page=1&page=2", "x=1", "page=%00", "per_page=1e3", "page=١"):
        for p in ("statements", "rentals"):
            r = c.get(f"/api/v1/{p}?{q}")
            print(p, q, r.status_code, r.content[:120])
    for q in ("from=2020-01-01&to=2026-01-01", "from=0001-01-01&to=9999-12-31", "from=2026-01-02&to=2026-01-01", "from=9999-12-31&to=9999-12-31", "zone=Mars", "from=2026-01-01", "from=2026-11-01&to=2026-11-30&zone=../../etc/passwd", "from=2026-11-01&to=2026-11-02&zone=Europe/Berlin%00"):
        r = c.get(f"/api/v1/earnings?{q}")
        print(q, r.status_code, r.content[:150])
    for u in ("/provider/earnings", "/provider/earnings.csv", "/provider/earnings/sheet"):
        for q in ("period=dates&first=0001-01-01&last=9999-12-31", "period=dates&first=9999-12-31&last=9999-12-31&zone=Pacific/Kiritimati", "period=dates&first=0001-01-01&last=0001-01-01&zone=Pacific/Kiritimati","machines=-1&payouts=999999999999999999999"):
            r = c.get(f"{u}?{q}")
            print(u, q, r.status_code)
    for m in ("post", "put", "delete", "patch"):
        print(m, getattr(c, m)("/api/v1/balance").status_code, getattr(c, m)("/api/v1/balance").content[:100])
    r = c.get("/api/v1/balance", HTTP_ACCEPT="text/html"); print(r.status_code, r["content-type"])
    r = c.get("/api/v1/balance?format=api"); print(r.status_code, r.content[:100])
    r = c.get("/api/v1/quotes?listing=" + str(uuid.uuid4())); print(r.status_code, r.content[:100])
    r = Client().get("/api/v1/balance"); print(r.status_code, r.content[:100])
