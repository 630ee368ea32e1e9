import time, pytest
from django.test import Client
from tests.providers.applying import person, typed
@pytest.mark.django_db
def test_speed(now):
    u=person("Yusuf",at=now); c=Client(); c.force_login(u)
    c.get("/roles/apply")
    for i in range(3):
        t=time.time(); r=c.post("/roles/apply", typed()|{"check":"1"}); print(time.time()-t, len(r.content))
    import cProfile,pstats
    p=cProfile.Profile(); p.enable(); r=c.post("/roles/apply", typed()|{"check":"1"}); p.disable()
    pstats.Stats(p).sort_stats("cumtime").print_stats(45)
    open("/tmp/apply.html","wb").write(r.content)
