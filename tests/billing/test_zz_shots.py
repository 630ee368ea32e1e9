from datetime import datetime, timedelta
import pytest
from playwright.sync_api import sync_playwright
from django.conf import settings as s
from billing import deposits, metering
from providers.models import Provider
from payouts import runs, methods, usdc
from tests import chainkit
from tests.requirements import require
from .conftest import *
from .test_views import mended, client_of, BACKEND
from django.test import Client
import os
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]="1"

@pytest.mark.django_db(transaction=True)
def test_shots(live_server, now, devchain):
    r = organisation("Nour"); p = organisation("Karim"); 
    Provider.objects.create(organisation=p, tier="enterprise", approved_at=now, commitment_months=6)
    chainkit.give(deposits.address_for(r, at=now).owner, 250*USDC)
    deposits.find_deposits(at=now); deposits.sweep_deposits(at=now); deposits.sweep_deposits(at=now)
    for i,(model,q,rate) in enumerate([("H100 80GB",2,4_100_000),("L40S 48GB",3,2_460_000),("RTX 4090 24GB",1,340_000)]):
        m = metering.open_meter(payer=r,payee=p,rate_micro_per_hour=rate,quantity=q,fee_bps=800,reference=__import__("uuid").uuid4(),labels={"rental":"x","model":model,"machine":f"fra-a{i}","gpus":[{"id":f"G{i}{k}","index":k} for k in range(q)],"image":"b"},at=now-timedelta(hours=30))
        metering.prove(until={m.pk: now-timedelta(minutes=20)})
        metering.settle_payer(organisation=r, at=now)
        if i==2: metering.close_meter(meter=m, ended_at=now-timedelta(hours=2), at=now)
        else: metering.prove(until={m.pk: now})
    admin = person("admin", is_staff=True, is_superuser=True)
    methods.connect_wallet(organisation=p, address=chainkit.wallet(), by=p.created_by, at=now)
    pay = runs.pay_off_cycle(organisation=p, by=admin, reason="first", at=now, amount_micro=40*USDC)
    usdc.advance(at=now); usdc.advance(at=now+timedelta(seconds=5))
    pay2 = runs.pay_off_cycle(organisation=p, by=admin, reason="second", at=now, amount_micro=3*USDC)
    chrome = require("chromium","shots")
    with sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=chrome, args=["--no-sandbox"])
        def shots(user, pages, lang, width, tag):
            user.language=lang; user.save()
            c = Client(); c.force_login(user, backend=BACKEND)
            ctx = b.new_context(viewport={"width":width,"height":900})
            ctx.add_cookies([{"name": s.SESSION_COOKIE_NAME,"value":c.cookies[s.SESSION_COOKIE_NAME].value,"url":live_server.url}])
            page = ctx.new_page()
            for name, path in pages:
                page.goto(live_server.url+path, wait_until="domcontentloaded"); page.wait_for_timeout(400)
                page.screenshot(path=f"/tmp/shotsA/{name}-{lang}-{tag}.png", full_page=True)
            ctx.close()
        prov=[("earnings","/provider/earnings"),("payouts","/provider/payouts"),("receipt",f"/provider/payouts/{pay.public_id}"),("wallet","/provider/payouts/wallet")]
        shots(r.created_by,[("balance","/balance")],"en",1280,"w"); shots(r.created_by,[("balance","/balance")],"ar",1280,"w"); shots(r.created_by,[("balance","/balance")],"en",390,"p")
        shots(p.created_by,prov,"en",1280,"w"); shots(p.created_by,prov[:2],"ar",1280,"w"); shots(p.created_by,prov[:2],"en",390,"p")
        shots(admin,[("a-provider",f"/admin/providers/provider/{p.provider.pk}/change/"),("a-off",f"/admin/payouts/payout/off-cycle/{p.public_id}/"),("a-payout",f"/admin/payouts/payout/{pay2.pk}/change/"),("a-queue","/admin/payouts/payout/"),("a-transfers","/admin/billing/transfer/")],"en",1280,"w")
        b.close()
