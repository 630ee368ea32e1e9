import os
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]="1"
from datetime import timedelta
from django.utils import timezone
from playwright.sync_api import sync_playwright
from reliability.models import Benchmark, Score, Sample, Connection
from providers import workloads
from providers.models import *
from tests.marketplace.conftest import *
import pytest, random

@pytest.mark.usefixtures("committed")
def test_shots(live_server):
    at=timezone.now(); rng=random.Random(1)
    rows=[]
    for n in range(14):
        o=provider(at=at,name=rng.choice(["Rawasi Compute","Taiga Data Oy","Polder Systems","Navigli AI"]),tier="enterprise" if n%3==0 else "community",months=(3,6,12)[n%3])
        l=offer(at=at,owner=o,price=rng.randrange(1_800_000,2_600_000,10_000) if n%2 else rng.randrange(300_000,500_000,10_000),model="h100-80gb" if n%2 else "rtx-4090-24gb",gpus=rng.choice([1,2,4,8]),simulated=n==1,country=rng.choice(["DE","FR","US"]),
          host={"cpu_model":"2 × EPYC 9454","cpu_cores":96,"memory_mib":1_474_560,"disk_free_gib":11_400})
        m=l.machine
        Connection.objects.create(machine=m,started_at=at-timedelta(days=40),ended_at=at-timedelta(days=20))
        Connection.objects.create(machine=m,started_at=at-timedelta(days=19,hours=12))
        Schedule.objects.filter(machine=m).update(effective_from=at-timedelta(days=100))
        Score.objects.create(machine=m,at=at,version=1,score=rng.uniform(92,99.9),uptime=.99,completion=.98,consistency=.97,inputs={"declared_hours":960.0,"jobs":311})
        g=m.gpus.first()
        w=workloads.assign(machine=m,kind="benchmark",spec={},gpus=[g],at=at)
        Benchmark.objects.create(gpu=g,workload=w,nonce="n",kernel_version="1",state="accepted",received_at=at-timedelta(hours=3),fp16_tflops=130.5,fp32_tflops=60.0,tensor_tflops=748.0,vram_read_gbps=2986.0,vram_write_gbps=2871.0,download_mbps=9640.0,upload_mbps=5000.0,latency_ms=2.1,disk_read_mb_s=6900.0,disk_write_mb_s=5100.0,details={"sm_clock_mhz":1980,"temperature_c":67})
        rows.append(l)
    listings.refresh(at=at)
    org=renter_with(500*USDC,at=at)
    org.created_by.set_password("correct horse x"); org.created_by.save()
    rentals_=[]
    for k in range(12):
        l=Listing.objects.get(pk=rows[k].pk)
        r=rent(org,l,at=at,spend_at_most_micro=20*USDC if k==3 else None,stop_after_seconds=3600 if k==3 else None); rentals_.append(r)
        report(r,"running",at=at-timedelta(minutes=30)) 
        heartbeat(r,at=at)
        if k in (0,5): report(r,"finished",at=at,cause="gpu_lost" if k else "completed",exit_code=0)
    live=rentals_[3]
    for s in range(40):
        Sample.objects.create(machine=live.listing.machine,gpu=live.gpus.get(),at=at-timedelta(seconds=15*s),temperature_c=60+rng.random()*5,power_w=600+rng.random()*90,utilization_pct=95+rng.random()*5,memory_used_mib=71000,memory_total_mib=81559)
    workloads.append_log(workload=live.job.workload,attempt=1,offset=0,text="".join(f"step {i*50:>6} | loss {3-i*.01:.4f} | 11,400 tokens/s\n" for i in range(60)),at=at)
    from django.test import Client
    prov=rows[1].machine.provider
    def cookie(user):
        c=Client(); c.force_login(user,backend="django.contrib.auth.backends.ModelBackend")
        k=[k for k in c.cookies if "session" in k or k.startswith("gpunex")][0]
        return {"name":k,"value":c.cookies[k].value,"url":live_server.url}
    os.makedirs("/tmp/shotsD",exist_ok=True)
    with sync_playwright() as p:
        b=p.chromium.launch(executable_path="/usr/bin/chromium",args=["--no-sandbox"])
        errors=[]
        for lang in ("en","ar"):
            for who,user,paths in (("anon",None,[("front","/"),("offers","/offers?model=h100-80gb"),("all","/offers"),("why",None),("prices","/prices"),("priceshist","/prices?model=h100-80gb"),("bad","/offers?vram_min=24+bananas")]),
                               ("renter",org.created_by,[("offer",rows[7].get_absolute_url()),("offerform",rows[13].get_absolute_url()),("rental",live.get_absolute_url()),("broken",rentals_[5].get_absolute_url()),("rentals","/rentals")]),
                               ("prov",prov.organisation.created_by,[("pricing","/provider/pricing")])):
                if user: user.language=lang; user.save()
                for scheme in (("light",1440) ,("dark",1440),("light",390)):
                    if lang=="ar" and scheme[0]=="dark": continue
                    ctx=b.new_context(viewport={"width":scheme[1],"height":900},color_scheme=scheme[0],locale=lang)
                    cs=[{"name":"django_language","value":lang,"url":live_server.url}]
                    if user: cs.append(cookie(user))
                    ctx.add_cookies(cs)
                    pg=ctx.new_page()
                    pg.on("console",lambda m: errors.append((m.type,m.text)) if m.type in("error","warning") else None)
                    for name,path in paths:
                        if name=="why":
                            path="/offers?model=h100-80gb&why="+str(Listing.objects.open(timezone.now()).filter(gpu_model__slug="h100-80gb").best_first().first().public_id)
                        pg.goto(live_server.url+path); pg.wait_for_timeout(300)
                        w=pg.evaluate("document.documentElement.scrollWidth")
                        if w>scheme[1]: errors.append(("overflow",name,lang,scheme,w))
                        pg.screenshot(path=f"/tmp/shotsD/{name}.{lang}.{scheme[0]}.{scheme[1]}.png",full_page=True)
        print(set(errors))
        b.close()
