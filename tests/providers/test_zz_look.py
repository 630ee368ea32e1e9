import os, sys
from datetime import timedelta, datetime, UTC
from django.utils import timezone
import pytest
from playwright.sync_api import sync_playwright
from django.urls import reverse
from django.test import Client
from tests.providers.test_dashboard_pages import *
from tests.marketplace.conftest import *
from providers.models import *
from providers import declarations
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]="1"

def build():
    at = timezone.now()
    owner = provider(name="Rawasi Compute", tier="enterprise", months=12, at=at - timedelta(days=60))
    a1 = machine(owner, at=at, gpus=8, model="h100-80gb", name="fra-a1", host={"docker_version":"28.1.1","toolkit_version":"1.17.8","cpu_model":"AMD EPYC 9654","cpu_cores":96,"memory_mib":1048576,"disk_free_gib":3500,"os":"Ubuntu 24.04"}, agent_version="0.1.0")
    b2 = machine(owner, at=at - timedelta(minutes=23), gpus=4, model="l40s-48gb", name="fra-b2", offline_since=at-timedelta(minutes=23), lost_at=at-timedelta(minutes=12))
    c1 = machine(owner, at=at, gpus=6, model="rtx-a6000-48gb", name="ams-c1", city="Amsterdam", simulated=True)
    d1 = machine(owner, at=at, gpus=2, model="l4-24gb", name="ams-d1", measured=False)
    h1 = machine(owner, at=at, gpus=4, model="l4-24gb", name="ams-h1", hidden_at=at-timedelta(hours=3))
    Gpu.objects.filter(machine=c1, index=3).update(performance=71.2, delisted_at=at, delisted_reason={"code":"performance","performance":71.2,"floor":90.0,"throttle_reasons":["hw_thermal_slowdown"]})
    Gpu.objects.filter(machine=c1, index=5).update(health="degraded", health_reason="xid:63")
    Gpu.objects.filter(machine=d1, index=1).update(admitted=False)
    Gpu.objects.filter(machine=h1, index=3).update(given=False)
    for m in (a1,b2,c1,h1):
        with_past(m, at)
    for m,s in ((a1,99.7),(b2,99.66),(c1,98.1)):
        Score.objects.create(machine=m, at=at+timedelta(seconds=1), version=1, score=s, uptime=.9968, completion=.9927, consistency=.984, inputs={"declared_hours":2160,"jobs":212,"runs":120}, new=False)
    for model, price in (("h100-80gb",2_050_000),("l40s-48gb",820_000),("rtx-a6000-48gb",460_000)):
        pricing.set_price(provider=owner, gpu_model=GpuModel.objects.get(slug=model), price_micro=price, by=None, at=at)
    listings.refresh(at=at, machines=[a1,b2,c1,d1,h1])
    from reliability.models import Outcome
    Outcome.objects.create(machine=c1, reference=uuid.uuid4(), at=at-timedelta(days=4), cause="gpu_lost", provider_fault=True)
    r = renter_with(100_000*USDC, at=at-timedelta(days=29))
    l = Listing.objects.get(machine=a1)
    for d in range(28,0,-1):
        t = at-timedelta(days=d)
        Machine.objects.filter(pk=a1.pk).update(last_seen_at=t)
        x = rent(r, l, at=t, gpu_count=2 + d % 5)
        e = run_for(x, 3600*(6+d%12), at=t+timedelta(seconds=20))
        report(x, "finished", at=e, exit_code=0, cause="completed", finished_at=e)
    Machine.objects.filter(pk=a1.pk).update(last_seen_at=at)
    x = rent(r, l, at=at-timedelta(hours=2), gpu_count=5)
    report(x, "running", at=at-timedelta(hours=2))
    Machine.objects.filter(pk=a1.pk).update(last_seen_at=at+timedelta(minutes=20)); 
    heartbeat(x, at=at)
    Machine.objects.filter(pk__in=[a1.pk,c1.pk,d1.pk,h1.pk]).update(last_seen_at=at+timedelta(minutes=30))
    declarations.declare_maintenance(machine=a1, starts_at=at+timedelta(days=2), ends_at=at+timedelta(days=2,hours=2), reason="Kernel update", by=None, at=at)
    declarations.declare_schedule(machine=h1, timezone="Europe/Berlin", always=False, windows=[[d,"20:00","08:00"] for d in range(4)]+[[5,"00:00","24:00"]], by=None, at=at)
    return owner, {m.name: m for m in (a1,b2,c1,d1,h1)}

@pytest.mark.django_db(transaction=True)
def test_look(committed, live_server):
    owner, ms = build()
    c = signed_in(owner)
    user = owner.organisation.created_by
    urls = {p: reverse(f"providers:{p}") for p in PAGES}
    urls["m-a1"]=reverse("providers:machine",args=[ms["fra-a1"].public_id]); urls["m-b2"]=reverse("providers:machine",args=[ms["fra-b2"].public_id]); urls["m-c1"]=reverse("providers:machine",args=[ms["ams-c1"].public_id])
    urls["hours"]=reverse("providers:availability_of",args=[ms["ams-h1"].public_id])
    urls["gpu"]=reverse("providers:benchmark_gpu",args=[ms["ams-c1"].gpus.get(index=3).public_id])
    urls["account"]=reverse("accounts:settings")
    only=os.environ.get("LOOK","").split(",") if os.environ.get("LOOK") else list(urls)
    combos=[x.split("-") for x in os.environ.get("COMBO","en-light-1440").split(",")]
    cookie=c.cookies[__import__("django.conf").conf.settings.SESSION_COOKIE_NAME].value
    name=__import__("django.conf").conf.settings.SESSION_COOKIE_NAME
    with sync_playwright() as p:
        b=p.chromium.launch(executable_path="/usr/bin/chromium",args=["--no-sandbox"])
        for lang,theme,w in combos:
            User.objects.filter(pk=user.pk).update(language=lang,theme=theme)
            ctx=b.new_context(viewport={"width":int(w),"height":900})
            ctx.add_cookies([{"name":name,"value":cookie,"url":live_server.url}])
            pg=ctx.new_page()
            msgs=[]
            pg.on("console",lambda m: msgs.append(m.text)); pg.on("pageerror",lambda e: msgs.append(str(e)))
            for k in only:
                pg.goto(live_server.url+urls[k]); pg.wait_for_timeout(250)
                over=pg.evaluate("document.documentElement.scrollWidth-document.documentElement.clientWidth")
                if over>0: print("OVERFLOW",k,lang,w,over)
                pg.screenshot(path=f"/tmp/dash/{k}.{lang}.{theme}.{w}.png",full_page=True)
            if msgs: print("CONSOLE",lang,theme,w,msgs[:5])
            if os.environ.get("LIVE"):
                pg.goto(live_server.url+urls["overview"]); pg.wait_for_timeout(11500)
                print("LIVE", pg.evaluate("[...document.querySelectorAll('#live,#machines,#gauges')].length"), msgs[:3])
            ctx.close()
        b.close()
