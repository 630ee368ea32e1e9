"""The agent API by its front door: enrolment, inventory, heartbeats, reports, logs."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from gpunex.kit.secrets import digest
from providers import declarations, keys, machines, workloads
from providers.models import Gpu, GpuClaim, Machine, Workload
from reliability.models import Connection
from tests import hosts
from tests.hosts import Host, approved, card, connected

pytestmark = pytest.mark.django_db


def test_a_host_enrols_with_a_key_and_is_known_by_a_secret_of_its_own(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card(0), card(1)])
    answer = host.enrol()
    assert answer.status_code == 201
    body = answer.json()
    assert body["heartbeat_s"] == 10
    assert body["server_time"].endswith("Z")
    assert body["secret"].startswith(f"gpxm_{host.machine.public_id.hex}_")
    assert host.machine.secret_hash == digest(body["secret"])
    assert body["secret"] not in str(Machine.objects.values().get())
    assert host.beat().status_code == 200


@pytest.mark.spec("A8")
@pytest.mark.parametrize("code", ["key_unknown", "key_used", "key_expired", "key_revoked"])
def test_a_key_that_is_not_taken_says_which_kind_of_wrong_it_is(code: str, now: datetime) -> None:
    provider = approved(at=now)
    application = provider.organisation.applications.get()
    text = keys.make_token(provider=provider, application=application, at=now)
    key = provider.keys.get()
    if code == "key_unknown":
        text += "x"
    elif code == "key_used":
        assert Host(text, [card()]).enrol().status_code == 201
    elif code == "key_expired":
        key.expires_at = now - timedelta(seconds=1)
        key.save()
    else:
        keys.revoke(key=key, by=provider.organisation.created_by, at=now)
    before = Machine.objects.count()
    answer = Host(text, [card()]).enrol()
    assert answer.status_code == 401
    assert answer.json()["code"] == code
    assert len(answer.json()["detail"]) > 20
    assert Machine.objects.count() == before


@pytest.mark.parametrize("code", ["key_unknown", "key_used", "key_expired", "key_revoked"])
def test_a_key_that_is_not_taken_is_said_before_what_the_body_lacks(code: str, now: datetime) -> None:
    provider = approved(at=now)
    text = keys.make_token(provider=provider, application=provider.organisation.applications.get(), at=now)
    spoil = {
        "key_unknown": {"hash": digest("another")},
        "key_used": {"used_at": now},
        "key_expired": {"expires_at": now - timedelta(seconds=1)},
        "key_revoked": {"revoked_at": now},
    }

    def ask() -> Any:
        return Client().post(
            "/api/agent/v1/enrol", {}, content_type="application/json", headers={"authorization": f"Bearer {text}"}
        )

    assert (ask().status_code, ask().json()["code"]) == (422, "invalid")
    provider.keys.update(**spoil[code])
    assert (ask().status_code, ask().json()["code"]) == (401, code)


def test_without_any_key_the_door_stays_shut(now: datetime) -> None:
    assert Host("", [card()]).enrol().json()["code"] == "key_unknown"


def test_enrolling_again_is_the_same_machine_and_the_old_secret_works_for_ten_minutes_more(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    first, machine = host.secret, host.machine
    answer = host.enrol()
    assert answer.status_code == 200
    assert host.machine == machine
    assert host.secret != first
    assert machines.authenticate(text=first, at=now + timedelta(minutes=9)) == machine
    with pytest.raises(machines.SecretUnknown):
        machines.authenticate(text=first, at=datetime.now(now.tzinfo) + timedelta(minutes=11))
    assert machines.authenticate(text=host.secret, at=now + timedelta(days=900)) == machine


def test_a_single_use_token_serves_the_same_host_again_and_no_other(now: datetime) -> None:
    provider = approved(at=now)
    text = keys.make_token(provider=provider, application=provider.organisation.applications.get(), at=now)
    host = Host(text, [card()])
    assert host.enrol().status_code == 201
    assert host.enrol().status_code == 200
    assert Host(text, [card()]).enrol().json()["code"] == "key_used"


@pytest.mark.parametrize("secret", ["", "gpxm_", "gpxm_" + "0" * 32 + "_" + "a" * 43, "nonsense"])
def test_a_secret_that_is_none_is_refused_everywhere(secret: str, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    host.secret = secret
    workload = uuid.uuid4()
    for path in (
        "inventory",
        "heartbeat",
        "telemetry",
        "events",
        "uninstall",
        f"workloads/{workload}/report",
        f"workloads/{workload}/logs",
    ):
        answer = host.call(path, {})
        assert (answer.status_code, answer.json()["code"]) == (401, "secret_unknown"), path


def test_another_machines_secret_opens_only_its_own_workloads(now: datetime) -> None:
    provider = approved(at=now)
    mine, other = connected(provider, at=now), connected(provider, at=now)
    workload = workloads.assign(
        machine=mine.machine, kind=Workload.Kind.JOB, spec={"image": "a"}, gpus=mine.gpus, at=now
    )
    assert other.report(workload, "running").json()["code"] == "not_found"
    assert (
        other.call(f"workloads/{workload.public_id}/logs", {"attempt": 1, "offset": 0, "text": "x"}).status_code == 404
    )


@pytest.mark.spec("B2")
def test_detected_cards_become_rows_matched_with_the_catalogue(now: datetime) -> None:
    host = Host(
        hosts.api_key(approved(at=now), at=now), [card(0), card(1, name="NVIDIA GeForce GTX 1080", vram_mib=8192)]
    )
    host.enrol()
    known, unknown = host.gpus
    assert known.variant is not None
    assert known.variant.model.slug == "rtx-4090-24gb"
    assert (unknown.variant, unknown.admitted) == (None, False)
    assert (host.machine.driver_version, host.machine.cuda_version) == ("580.95.05", "13.0")


@pytest.mark.spec("B2")
def test_a_name_with_another_memory_is_not_the_catalogues_card(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card(0, vram_mib=49152), card(1, vram_mib=None)])
    host.enrol()
    assert [gpu.variant for gpu in host.gpus] == [None, None]


@pytest.mark.spec("A9")
def test_the_approved_entry_gives_place_power_and_hours(now: datetime) -> None:
    windows = [[0, "18:00", "02:00"]]
    provider = approved(
        at=now,
        ups=True,
        entries=[{"model": "l4-24gb"}, {"always_available": False, "windows": windows, "city": "Giza"}],
    )
    machine = connected(provider, at=now).machine
    assert (machine.country, machine.city, machine.ups) == ("EG", "Giza", True)
    schedule = machine.schedules.get()
    assert (schedule.always, schedule.windows, schedule.timezone) == (False, windows, "Africa/Cairo")


@pytest.mark.spec("A9")
def test_cards_beyond_the_approved_quantity_or_model_wait_for_an_admin(now: datetime) -> None:
    provider = approved(at=now, entries=[{"quantity": 3}])
    first = connected(provider, at=now, count=2)
    second = connected(provider, at=now, count=2)
    other = connected(provider, at=now, count=1, model="l4-24gb")
    assert [gpu.admitted for gpu in first.gpus] == [True, True]
    assert [gpu.admitted for gpu in second.gpus] == [True, False]
    assert other.machine.entry is None
    assert (other.machine.country, other.machine.city) == ("EG", "Cairo")
    assert [gpu.admitted for gpu in other.gpus] == [False]
    assert Gpu.objects.offerable().filter(machine__provider=provider).count() == 3


@pytest.mark.spec("A9")
def test_the_token_ties_the_machine_to_its_own_application_first(now: datetime) -> None:
    provider = approved(at=now, entries=[{"city": "Cairo"}])
    later = provider.organisation.applications.create(
        created_by=provider.organisation.created_by,
        full_name="x",
        email="x@example.org",
        state="approved",
        tier="community",
    )
    hosts.add_entry(later, city="Luxor")
    host = Host(keys.make_token(provider=provider, application=later, at=now), [card()])
    host.enrol()
    assert host.machine.city == "Luxor"


@pytest.mark.spec("B6")
def test_a_card_that_is_not_given_is_shown_and_never_offered(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card(0), card(1, given=False)])
    host.enrol()
    assert [gpu.given for gpu in host.gpus] == [True, False]
    assert [gpu.index for gpu in Gpu.objects.offerable().filter(machine=host.machine)] == [0]


@pytest.mark.spec("B6")
def test_the_dashboards_choice_lasts_until_the_host_changes_its_own(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)

    def reported(given: bool) -> bool:
        host.cards = [host.cards[0] | {"given": given}]
        host.report_inventory()
        return host.gpus[0].given

    declarations.give(gpu=host.gpus[0], given=False, at=now)
    assert reported(True) is False
    assert reported(False) is False
    assert reported(True) is True


@pytest.mark.case("marketplace-31", "marketplace-32")
def test_a_uuid_that_another_live_machine_has_is_refused_for_that_card_alone(now: datetime) -> None:
    mine = connected(approved(at=now), at=now, count=2)
    theirs = Host(hosts.api_key(approved(at=now), at=now), [mine.cards[0], card(1)])
    body = theirs.enrol().json()
    assert [(rejected["uuid"], rejected["code"]) for rejected in body["rejected"]] == [
        (mine.cards[0]["uuid"], "uuid_taken")
    ]
    assert [gpu.uuid for gpu in theirs.gpus] == [theirs.cards[1]["uuid"]]
    assert [gpu.removed_at for gpu in mine.gpus] == [None, None]
    answer = theirs.report_inventory().json()
    assert [rejected["code"] for rejected in answer["rejected"]] == ["uuid_taken"]


def test_if_every_card_is_taken_there_is_no_machine_and_the_token_is_still_good(now: datetime) -> None:
    mine = connected(approved(at=now), at=now, count=1)
    provider = approved(at=now)
    token = keys.make_token(provider=provider, application=provider.organisation.applications.get(), at=now)
    answer = Host(token, mine.cards).enrol()
    assert (answer.status_code, answer.json()["code"]) == (409, "uuid_taken")
    assert not provider.machines.exists()
    assert Host(token, [card()]).enrol().status_code == 201


def test_a_card_moves_between_ones_own_machines_once_the_old_one_is_lost(now: datetime) -> None:
    provider = approved(at=now)
    old = connected(provider, at=now, count=1)
    new = Host(hosts.api_key(provider, at=now), old.cards)
    assert new.enrol().status_code == 409
    Machine.objects.filter(pk=old.machine.pk).update(lost_at=now)
    assert new.enrol().status_code == 201
    assert Gpu.objects.get(uuid=old.cards[0]["uuid"], removed_at=None).machine == new.machine


@pytest.mark.spec("B2")
@pytest.mark.case("agent-12", "agent-13")
def test_a_card_that_falls_off_is_gone_and_comes_back_to_be_measured_anew(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=2)
    Gpu.objects.filter(machine=host.machine).update(benchmarked_at=now)
    lost, kept = host.cards
    host.cards = [kept]
    assert host.report_inventory().status_code == 200
    gone = Gpu.objects.get(uuid=lost["uuid"])
    assert gone.removed_at is not None
    assert [gpu.index for gpu in Gpu.objects.offerable().filter(machine=host.machine)] == [1]
    host.cards = [lost, kept]
    host.report_inventory()
    gone.refresh_from_db()
    assert (gone.removed_at, gone.benchmarked_at) == (None, None)
    assert Gpu.objects.get(uuid=kept["uuid"]).benchmarked_at == now


@pytest.mark.spec("B2")
def test_a_new_driver_is_told_by_the_inventory_and_kept(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    host.facts = {"driver_version": "590.10", "cuda_version": "13.1"}
    host.report_inventory()
    host.report_inventory()
    assert host.machine.driver_version == "590.10"
    event = host.machine.health_events.get()
    assert event.data == {"driver": ["580.95.05", "590.10"], "cuda": ["13.0", "13.1"]}


def test_a_card_in_mig_mode_is_not_offered(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card(0, mig_enabled=True)])
    host.enrol()
    assert not Gpu.objects.offerable().filter(machine=host.machine).exists()


@pytest.mark.spec("B5")
def test_a_heartbeat_makes_a_machine_connected(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card()])
    host.enrol()
    assert not host.machine.is_connected(now + timedelta(seconds=1), 45)
    answer = host.beat().json()
    assert answer["interval_s"] == 10
    assert answer["drain"] is False
    assert host.machine.is_connected(now + timedelta(seconds=5), 45)
    assert Connection.objects.get(machine=host.machine).ended_at is None


def test_a_heartbeat_costs_three_statements(now: datetime, django_assert_num_queries: Any) -> None:
    """Who is it, what are the numbers, it lives."""
    host = connected(approved(at=now), at=now)
    with django_assert_num_queries(3):
        host.beat()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"boot_id": "b", "workloads": [{"id": "no uuid", "attempt": 1, "state": "running"}]},
        {"boot_id": "b" * 65},
        {"boot_id": "b", "nvml": "fine"},
        {"boot_id": "b", "sent_at": "yesterday"},
        ["a list"],
    ],
)
def test_a_body_that_is_not_as_the_contract_says_is_refused_with_its_errors(body: object, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    seen = host.machine.last_seen_at
    answer = host.call("heartbeat", body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"
    assert answer.json()["errors"]
    assert host.machine.last_seen_at == seen


@pytest.mark.parametrize("text", ["{", '{"boot_id": NaN}', "\x00"])
def test_what_is_not_json_is_refused(text: str, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    answer = host.client.post(
        hosts.ROOT + "heartbeat",
        text,
        content_type="application/json",
        headers={"Authorization": f"Bearer {host.secret}"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize(
    "changes",
    [
        {"uuid": "GPU-1'; drop table"},
        {"index": -1},
        {"name": ""},
        {"vram_mib": 10**12},
        {"vram_mib": "many"},
        {"health": "splendid"},
        {"power_limit_w": -5},
        {"ecc_enabled": "perhaps"},
    ],
)
@pytest.mark.case("agent-18")
def test_absurd_facts_of_a_card_are_refused(changes: dict[str, object], now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)
    before = host.gpus[0].facts
    host.cards = [host.cards[0] | changes]
    answer = host.report_inventory()
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert host.gpus[0].facts == before


def test_one_uuid_twice_in_one_inventory_is_refused(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)
    host.cards = [host.cards[0], host.cards[0] | {"index": 1}]
    assert host.report_inventory().status_code == 422


def test_fields_that_a_newer_agent_sends_are_left_out(now: datetime) -> None:
    host = connected(approved(at=now), at=now, count=1)
    host.cards = [host.cards[0] | {"nvlink": 18}]
    assert host.report_inventory().status_code == 200
    assert "nvlink" not in host.gpus[0].facts


def test_simulated_machines_stay_in_demonstrations(now: datetime, settings: object) -> None:
    settings.EMBEDDED = False  # type: ignore[attr-defined]
    host = Host(hosts.api_key(approved(at=now), at=now), [card()])
    host.simulated = True
    answer = host.enrol()
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert not Machine.objects.exists()


def test_a_host_without_cards_is_told_to_look_at_nvidia_smi(now: datetime) -> None:
    answer = Host(hosts.api_key(approved(at=now), at=now), []).enrol()
    assert answer.status_code == 422
    assert "nvidia-smi" in answer.json()["detail"]


def test_names_of_machines_are_unique_within_a_provider(now: datetime) -> None:
    provider = approved(at=now)
    assert [
        connected(provider, at=now, count=1, hostname=name).machine.name for name in ("Rig 1", "rig-1", "rig-1", "..")
    ] == [
        "rig-1",
        "rig-1-2",
        "rig-1-3",
        "machine",
    ]


def job(host: Host, at: datetime) -> Workload:
    return workloads.assign(
        machine=host.machine,
        kind=Workload.Kind.JOB,
        spec={"image": "ubuntu:24.04", "env": {"A": "secret"}},
        gpus=host.gpus[:1],
        at=at,
    )


@pytest.mark.case("agent-33")
def test_a_stale_attempt_is_told_to_end(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    workload = job(host, now)
    answer = host.call(f"workloads/{workload.public_id}/report", {"attempt": 0, "sequence": 1, "state": "running"})
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_attempt")
    workload.refresh_from_db()
    assert workload.observed == "assigned"


@pytest.mark.parametrize(
    "body",
    [
        {"state": "finished"},
        {"state": "finished", "cause": "bored"},
        {"state": "assigned"},
        {"state": "sleeping"},
        {"state": "pulling", "progress": 1.5},
        {"state": "finished", "cause": "completed", "exit_code": "one"},
    ],
)
def test_a_report_that_cannot_be_is_refused(body: dict[str, object], now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    workload = job(host, now)
    answer = host.call(f"workloads/{workload.public_id}/report", {"attempt": 1, "sequence": 1} | body)
    assert answer.status_code == 422
    workload.refresh_from_db()
    assert workload.observed == "assigned"


@pytest.mark.spec("F3")
def test_logs_are_kept_once_by_offset(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    workload = job(host, now)
    path = f"workloads/{workload.public_id}/logs"
    assert host.call(path, {"attempt": 1, "offset": 0, "text": "héllo\n"}).json()["next_offset"] == 7
    again = host.call(path, {"attempt": 1, "offset": 0, "text": "héllo\n"})
    assert (again.status_code, again.json()["code"], again.json()["wanted"]) == (409, "offset", 7)
    assert host.call(path, {"attempt": 1, "offset": 7, "text": "wörld\x00\n"}).json()["next_offset"] == 15
    assert workloads.read_log(workload) == ("héllo\nwörld?\n", 15)
    assert workloads.read_log(workload, after=7, limit_bytes=3) == ("wö", 10)


def test_uninstalling_retires_the_machine_ends_its_work_and_frees_its_cards(now: datetime) -> None:
    provider = approved(at=now)
    host = connected(provider, at=now)
    workload = job(host, now)
    assert host.call("uninstall", {}).status_code == 200
    assert host.machine.retired_at is not None
    workload.refresh_from_db()
    assert (workload.observed, workload.cause) == ("finished", "agent_shutdown")
    assert host.beat().json()["code"] == "revoked"
    again = Host(hosts.api_key(provider, at=now), host.cards, hostname=host.hostname)
    again.fingerprint = host.fingerprint
    assert again.enrol().status_code == 201
    assert again.machine.pk != host.machine.pk


def test_unknown_paths_and_methods_answer_in_the_contracts_words(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    assert host.call("nothing", {}).json()["code"] == "not_found"
    wrong = host.call("heartbeat", method="get")
    assert wrong.status_code == 405
    assert "server_time" in wrong.json()


def test_the_contract_is_published_with_every_endpoint(client: object) -> None:
    document = client.get(hosts.ROOT + "openapi.json").json()  # type: ignore[attr-defined]
    names = {path.removeprefix(hosts.ROOT) for path in document["paths"]}
    assert names == {
        *("enrol", "inventory", "heartbeat", "assignments", "telemetry", "events", "speed", "uninstall"),
        *("workloads/{workload_id}/report", "workloads/{workload_id}/logs", "workloads/{workload_id}/result"),
    }


def test_no_claim_is_left_by_all_of_this(now: datetime) -> None:
    connected(approved(at=now), at=now)
    assert not GpuClaim.objects.exists()


BIG = "9" * 400
ODD_BODIES = [
    ("heartbeat", b"\xff\xfe\x00"),
    ("heartbeat", "[" * 100_000),
    ("heartbeat", '{"boot_id":' + "[" * 100_000),
    ("heartbeat", '{"boot_id":"a\\u0000b"}'),
    ("heartbeat", '{"boot_id":"\\ud800"}'),
    ("telemetry", '{"samples":[{"gpu_uuid":"CARD","at":"NOW","memory_used_mib":1e999}]}'),
    ("telemetry", '{"samples":[{"gpu_uuid":"CARD","at":"NOW","power_w":' + BIG + "}]}"),
    ("telemetry", '{"samples":[{"gpu_uuid":"CARD","at":"NOW","power_w":NaN}]}'),
    ("telemetry", '{"samples":[{"gpu_uuid":"CARD","at":"NOW","throttle_reasons":["a\\u0000"]}]}'),
    (
        "events",
        '{"events":[{"id":"ID","sequence":1,"at":"NOW","kind":"xid","gpu_uuid":"CARD","data":{"a":"\\u0000"}}]}',
    ),
    ("events", '{"events":[{"id":"ID","sequence":1,"at":"NOW","kind":"xid","gpu_uuid":"CARD","data":{"a":1e999}}]}'),
    (
        "events",
        '{"events":[{"id":"ID","sequence":1,"at":"NOW","kind":"xid","gpu_uuid":"CARD","data":{"a":"\\ud800"}}]}',
    ),
    ("inventory", '{"host":{"cpu_cores":1e999},"gpus":[]}'),
    ("inventory", '{"host":{"disk_free_gib":' + BIG + '},"gpus":[]}'),
]


@pytest.mark.parametrize(("path", "body"), ODD_BODIES)
def test_what_json_allows_and_nobody_means_is_refused_and_breaks_nothing(path: str, body: str | bytes, now: datetime):
    host = connected(approved(at=now), at=now)
    if isinstance(body, str):
        body = (
            body.replace("CARD", host.cards[0]["uuid"]).replace("NOW", now.isoformat()).replace("ID", str(uuid.uuid4()))
        )
    headers = {"Authorization": f"Bearer {host.secret}"}
    answer = host.client.post(f"/api/agent/v1/{path}", body, content_type="application/json", headers=headers)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"


@pytest.mark.parametrize("number", [int("9" * 2000), -1, True, "79"])
def test_an_event_with_a_number_that_is_no_xid_is_kept_and_takes_no_card_away(number: object, now: datetime):
    host = connected(approved(at=now), at=now)
    event = {
        "id": str(uuid.uuid4()),
        "sequence": 7,
        "at": now.isoformat(),
        "kind": "xid",
        "gpu_uuid": host.cards[0]["uuid"],
    }
    answer = host.call("events", {"events": [event | {"data": {"xid": number}}]})
    assert (answer.status_code, answer.json()["acknowledged"]) == (200, 7)
    assert host.gpus[0].health == "ok"


@pytest.mark.spec("A9")
def test_a_card_that_says_it_is_another_model_is_admitted_and_measured_anew(now: datetime):
    """The UUID of an admitted RTX 4090 under the name of an H100 would else be rented at an H100's price at once."""
    host = connected(approved(at=now), at=now, count=1)
    Gpu.objects.filter(machine=host.machine).update(benchmarked_at=now, performance=100)
    assert host.gpus[0].admitted
    host.cards = [card(model="h100-80gb", uuid=host.cards[0]["uuid"])]
    assert host.report_inventory().status_code == 200
    (claimed,) = host.gpus
    assert claimed.variant is not None and claimed.variant.model.slug == "h100-80gb"
    assert (claimed.admitted, claimed.benchmarked_at, claimed.performance) == (False, None, None)


@pytest.mark.spec("A9")
def test_swapping_cards_admits_no_more_than_was_approved(now: datetime):
    host = connected(approved(at=now, entries=[{"quantity": 2}]), at=now, count=2)
    first, others = list(host.cards), [card(2), card(3)]
    host.cards = others
    host.report_inventory()
    assert Gpu.objects.present().filter(admitted=True).count() == 2  # spares in the places of broken ones
    host.cards = [*others, *first]
    host.report_inventory()
    assert set(Gpu.objects.present().filter(admitted=True).values_list("uuid", flat=True)) == {
        each["uuid"] for each in others
    }


@pytest.mark.spec("A9")
def test_a_card_that_an_admin_admitted_is_still_admitted_after_it_was_gone(now: datetime):
    host = connected(approved(at=now, entries=[{"quantity": 1}]), at=now, count=2)
    Gpu.objects.filter(machine=host.machine).update(admitted=True)
    kept = list(host.cards)
    host.cards = kept[:1]
    host.report_inventory()
    host.cards = kept
    host.report_inventory()
    assert Gpu.objects.present().filter(admitted=True).count() == 2
