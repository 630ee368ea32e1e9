"""The whole way through, by itself: what a newcomer would do by hand, through the public doors only.

Pages and forms over HTTP, the agent as a process of its own, USDC sent on the development chain. Nothing is backdated and
nothing is written behind the doors; the database is only read at the end, by the books' own proof.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from solders.keypair import Keypair

from gpunex.chain.faucet import give, give_sol, send_usdc
from gpunex.chain.rpc import Rpc, RpcError, RpcUnavailable
from gpunex.chain.transfers import load_key
from gpunex.demo.browser import Browser, Page, Unexpected
from gpunex.demo.paying import DEPOSIT_MICRO, PRICE, Paying
from gpunex.demo.people import ADMIN, PASSWORD
from gpunex.kit.money import as_decimal_string

COMMAND = "sh -c 'echo step one; sleep 12; echo step two; exit 7'"
LINE = "step two"
EXIT_CODE = 7
MODEL = "rtx-4090-24gb"
AGENT = {"GPUNEX_SIM_BENCHMARK_S": "2", "GPUNEX_SAMPLE_S": "2"}


class Story(Paying):
    """Runs the steps in order; each says its figure, or why it failed."""

    def __init__(self, *, url: str, say: Callable[[str], None], root: Path) -> None:
        self.url, self.say, self.root = url, say, root
        self.mark = secrets.token_hex(4)
        self.password = secrets.token_urlsafe(14)
        self.provider_email = f"provider-{self.mark}@check.gpunex.example"
        self.renter_email = f"renter-{self.mark}@check.gpunex.example"
        self.wallet = Keypair()
        self.agent: subprocess.Popen[bytes] | None = None
        self.provider, self.renter, self.admin = Browser(url), Browser(url), Browser(url)
        self.token = self.machine_path = self.offer_path = self.rental_path = ""
        self._told = 0
        self.steps: list[tuple[str, Callable[[], str]]] = [
            (
                "A person signs up and confirms the address",
                lambda: self._sign_up(self.provider, self.provider_email, "Check Provider"),
            ),
            ("Applies with two GPU entries; a third is added and removed", self._apply),
            ("An administrator approves; the mail brings a token", self._approve),
            ("The install script is served", self._install_script),
            ("The agent enrols; the dashboard shows it connected", self._enrol),
            ("The token does not work twice", self._token_is_used),
            ("The benchmark ran by itself", self._benchmark),
            ("A price puts the GPUs on the market", self._price),
            ("A renter signs up and has an address of their own", self._fund),
            ("Without money nothing is rented; then USDC arrives on chain", self._refused_without_money),
            ("A payment request is paid from its link alone", self._pay_a_request),
            ("The renter rents a GPU; the job runs", self._rent),
            ("Logs arrive and the job ends with its exit code", self._watch),
            ("Charged by the second, and the provider credited", self._bill),
            ("A wallet is connected by its signature; an off-cycle payout arrives in it", self._pay),
            ("The payout's statement adds up, as page, CSV, PDF and by its hash", self._statement),
            ("The payout is proved to anyone, from the ledger's lines to the chain", self._proof),
            ("What the renter does not use goes back to a proven wallet, with a statement", self._return),
            ("The agent stops; the dashboard shows it offline", self._offline),
            ("The books balance", self._books),
        ]

    def run(self) -> bool:
        """Tell the whole story. True if every step went well."""
        started = time.monotonic()
        with self:
            if not self.tell(self.steps):
                return False
        self.say(f"The whole way through took {time.monotonic() - started:.0f} s.")
        self.say("drift: 0 micro-USDC")
        return True

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for browser in (self.provider, self.renter, self.admin):
                stack.enter_context(browser)
            self.state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpunex-agent-")))
            stack.callback(self._end_agent)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, steps: Sequence[tuple[str, Callable[[], str]]]) -> bool:
        """Take these steps of the story, which is open. True if every one went well."""
        for title, step in steps:
            self._told += 1
            begun = time.monotonic()
            try:
                figure = step()
            except (Unexpected, httpx.HTTPError, RpcError, RpcUnavailable, subprocess.SubprocessError) as error:
                self.say(f"FAILED {self._told:>2}  {title}: {error}")
                return False
            self.say(f"ok     {self._told:>2}  {title}: {figure}  ({time.monotonic() - begun:.1f} s)")
        return True

    # Signing up

    def _sign_up(self, browser: Browser, email: str, name: str) -> str:
        page = browser.get("/account/signup/")
        page = browser.submit(page, page.form(having="password1"), email=email, password1=self.password, full_name=name)
        self._follow_mail(browser, email, r"/account/confirm-email/")
        page = browser.get("/me/notices")
        if page.path != "/me/notices":
            raise Unexpected(f"{email} is not signed in after confirming the address; landed on {page.path}")
        return email

    def _follow_mail(self, browser: Browser, email: str, pattern: str) -> None:
        """Open the link of the newest mail to ``email`` and press the button on its page."""
        link = re.search(rf"\S*{pattern}[^\s\"<>]*", self._mail(email, pattern))
        assert link is not None
        page = browser.get(urlsplit(link[0]).path)
        with contextlib.suppress(Unexpected):
            browser.submit(page, page.form(action="confirm-email"))

    def _mail(self, email: str, pattern: str) -> str:
        """The text of the newest mail to ``email`` that matches, waited for."""
        with Browser(self.url) as reader:
            for _ in self._until(f"a mail to {email}", seconds=25):
                page = reader.get(f"/dev/mail?to={email}")
                for link in page.links(r"^/dev/mail/\d"):
                    mail = reader.get(link)
                    if re.search(pattern, mail.body):
                        return mail.text
        raise Unexpected(f"no mail to {email} came")

    # Providing

    def _apply(self) -> str:
        page = self.provider.get("/roles")
        if not page.links(r"/roles/apply$"):
            raise Unexpected("Roles has no link to the application form")
        page = self.provider.get("/roles/apply")
        first = self._entry("0", MODEL, "2")
        page = self.provider.submit(page, page.form(having="row"), press="add", full_name="Check Provider", **first)
        second = self._entry("1", "rtx-a6000-48gb", "1")
        page = self.provider.submit(page, page.form(having="row"), press="add", **second)
        page = self.provider.submit(page, page.form(having="row"), press="remove=2")
        form = page.form(having="row")
        if form.fields["row"] != ["0", "1"] or form.fields["entry-1-quantity"] != ["1"]:
            raise Unexpected("removing the third entry lost what was typed in the others")
        refused = self.provider.submit(
            page, form, press="review", expect=422, **{"entry-0-quantity": "10000", "entry-1-upload_gbps": "abc"}
        )
        page = self.provider.submit(
            refused,
            refused.form(having="row"),
            press="review",
            **{"entry-0-quantity": "2", "entry-1-upload_gbps": "0.5"},
        )
        page = self.provider.submit(page, page.form(action="/review"))
        if "/roles/applications/" not in page.path:
            raise Unexpected(f"the application did not lead to its page but to {page.path}: {page.summary()}")
        return "2 × RTX 4090 24GB and 1 × RTX A6000 48GB, submitted"

    def _entry(self, key: str, model: str, quantity: str) -> dict[str, str]:
        values = {
            "gpu_model": model,
            "quantity": quantity,
            "host_memory_gb": "128",
            "download_gbps": "1.5",
            "upload_gbps": "0.5",
            "country": "DE",
            "city": "Leipzig",
            "availability": "always",
            "timezone": "Europe/Berlin",
        }
        return {f"entry-{key}-{name}": value for name, value in values.items()}

    def _approve(self) -> str:
        self._sign_in(self.admin, ADMIN.email, PASSWORD)
        queue = self.admin.get("/admin/providers/application/?q=" + self.provider_email)
        decisions = queue.links(r"/admin/providers/application/\d+/(decide|decision|change)")
        if not decisions:
            raise Unexpected(f"the review queue does not show the application: {queue.summary()}")
        page = self.admin.get(urlsplit(decisions[0]).path)
        if not any(
            "decision" in form.fields or any(name == "decision" for name, _ in form.buttons) for form in page.forms
        ):
            more = page.links(r"/decision|/decide")
            if more:
                page = self.admin.get(urlsplit(more[0]).path)
        form = page.form(having="tier")
        self.admin.submit(page, form, decision="approve", tier="community", message="Welcome.")
        mail = self._mail(self.provider_email, r"gpxe_")
        token = re.search(r"gpxe_[A-Za-z0-9_-]{20,}", mail)
        if token is None:
            raise Unexpected("the approval mail has no token")
        if "| bash" not in mail:
            raise Unexpected("the approval mail has no install line")
        self.token = token[0]
        return f"community tier; token {self.token[:13]}…"

    def _sign_in(self, browser: Browser, email: str, password: str) -> None:
        page = browser.get("/account/login/")
        page = browser.submit(page, page.form(having="password"), login=email, password=password)
        if page.path.startswith("/account/login"):
            raise Unexpected(f"{email} could not sign in: {page.summary()}")

    def _install_script(self) -> str:
        response = self.provider.client.get("/agent")
        script = response.text
        if response.status_code != 200 or not script.startswith("#!") or self.url not in script or "@@" in script:
            raise Unexpected(f"/agent answered {response.status_code} and not a filled-in script")
        return f"{len(script.splitlines())} lines, for {self.url}"

    def _agent_command(self, state: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "agent", "--url", self.url, "--state", str(state)),
            *("--simulate", "rtx4090x2", "--name", f"check-{self.mark}"),
        ]

    def _enrol(self) -> str:
        with (self.state / "agent.log").open("wb") as log:
            self.agent = subprocess.Popen(
                self._agent_command(self.state),
                cwd=self.root,
                env={**os.environ, **AGENT, "GPUNEX_API_KEY": self.token, "GPUNEX_SIM_SEED": self.mark},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        for _ in self._until("the machine on the dashboard", seconds=30):
            self._agent_lives()
            page = self.provider.get("/provider/machines")
            links = [link for link in page.links(r"^/provider/machines/[0-9a-f-]{36}$")]
            if links and f"check-{self.mark}" in page.text and re.search(r"Connected", page.text):
                self.machine_path = links[0]
                machine = self.provider.get(self.machine_path)
                if machine.text.count("GPU-") >= 2 or machine.body.count("GPU-") >= 2:
                    return f"check-{self.mark}, 2 GPUs, Connected"
        raise Unexpected("the machine did not show as connected")

    def _agent_lives(self) -> None:
        if self.agent is not None and self.agent.poll() is not None:
            said = (self.state / "agent.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise Unexpected(f"the agent ended with status {self.agent.returncode}: {' / '.join(said)}")

    def _token_is_used(self) -> str:
        with tempfile.TemporaryDirectory(prefix="gpunex-again-") as folder:
            again = subprocess.run(
                [*self._agent_command(Path(folder))[:-2], "--name", f"again-{self.mark}", "--enrol-only"],
                cwd=self.root,
                env={**os.environ, "GPUNEX_API_KEY": self.token, "GPUNEX_SIM_SEED": f"{self.mark}-again"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        said = again.stderr.strip().splitlines()[-1] if again.stderr.strip() else ""
        if again.returncode == 0 or "used" not in said:
            raise Unexpected(f"a used token was answered with status {again.returncode}: {said}")
        return f"exit status {again.returncode}"

    def _benchmark(self) -> str:
        for _ in self._until("the benchmark's score", seconds=60):
            self._agent_lives()
            page = self.provider.get("/provider/benchmarks")
            scores = re.findall(r"\b(\d{2,3}\.\d{1,2})\s?%?", page.text)
            if (
                "TFLOPS" in page.text
                and scores
                and not re.search(r"measured now|being measured", page.text, re.IGNORECASE)
            ):
                return f"score {scores[0]} of this model's 100"
        raise Unexpected(f"no benchmark result came: {page.summary()}")

    def _price(self) -> str:
        page = self.provider.get("/provider/pricing")
        refused = self.provider.submit(page, page.form(having=MODEL), expect=422, **{MODEL: "-1"})
        self.provider.submit(refused, refused.form(having=MODEL), **{MODEL: PRICE})
        with Browser(self.url) as anybody:
            for _ in self._until("the offer on the market", seconds=40):
                offers = anybody.get(f"/offers?model={MODEL}")
                for link in offers.links(r"^/offers/[0-9a-f-]{36}$"):
                    offer = anybody.get(link)
                    if f"check-{self.mark}" in offer.text:
                        self.offer_path = link
                        return f"{PRICE} USDC per GPU per hour, found without an account"
        raise Unexpected("the offer did not appear on the market")

    # Renting

    def _fund(self) -> str:
        self._sign_up(self.renter, self.renter_email, "Check Renter")
        page = self.renter.get("/balance")
        self.deposit_address = page.find(r"\b([1-9A-HJ-NP-Za-km-z]{43,44})\b")
        return f"deposit address {self.deposit_address[:6]}…{self.deposit_address[-4:]}"

    def _refused_without_money(self) -> str:
        page = self._ask_to_rent(expect=422)
        refusal = page.summary()
        if "hour" not in page.text:
            raise Unexpected(f"renting without money was not refused with a reason: {refusal}")
        with Rpc(settings.SOLANA_RPC_URLS) as rpc:
            faucet = load_key(settings.FAUCET_KEY_FILE)
            exchange = Keypair()  # as from an exchange's own wallet
            give_sol(rpc, str(exchange.pubkey()), 50_000_000)
            give(rpc, faucet, settings.USDC_MINT, str(exchange.pubkey()), DEPOSIT_MICRO)
            send_usdc(rpc, exchange, settings.USDC_MINT, self.deposit_address, DEPOSIT_MICRO)
        for _ in self._until("the deposit in the balance", seconds=30):
            if "25.00" in self.renter.get("/balance").text:
                return f"refused; then {as_decimal_string(DEPOSIT_MICRO)} USDC arrived and were credited"
        raise Unexpected("the deposit was not credited")

    def _ask_to_rent(self, *, expect: int = 200) -> Page:
        page = self.renter.get(self.offer_path)
        form = page.form(having="image")
        values = {"image": "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", "command": COMMAND}
        for name in ("gpu_count", "count", "gpus"):
            if name in form.fields or name in form.options:
                values[name] = "1"
        return self.renter.submit(page, form, expect=expect, **values)

    def _rent(self) -> str:
        page = self._ask_to_rent()
        if not re.fullmatch(r"/rentals/[0-9a-f-]{36}", page.path):
            raise Unexpected(f"renting led to {page.path}: {page.summary()}")
        self.rental_path = page.path
        for _ in self._until("the job to run", seconds=30):
            self._agent_lives()
            page = self.renter.get(self.rental_path)
            # The badge beside the name, and not the list of states to come.
            if re.search(r'id="rental-head"(?:(?!</div>).)*\bRunning\b', page.body, re.DOTALL):
                return f"rental r-{self.rental_path[9:17]} runs"
        raise Unexpected(f"the job did not run: {page.summary()}")

    def _watch(self) -> str:
        for _ in self._until("the job's end", seconds=60):
            self._agent_lives()
            page = self.renter.get(self.rental_path)
            if LINE in page.text and re.search(rf"(exit code|Exit code)\D{{0,20}}{EXIT_CODE}\b", page.text):
                return f"“{LINE}”, exit code {EXIT_CODE}"
        raise Unexpected(f"the job's end or its log did not show: {page.summary()}")

    def _offline(self) -> str:
        for _ in self._until("the machine to show as offline", seconds=75):
            page = self.provider.get(self.machine_path)
            if re.search(r"Offline since", page.text):
                return page.find(r"(Offline since [0-9A-Za-z :]{5,20}UTC)")
        raise Unexpected("the machine did not show as offline")

    def _end_agent(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
            try:
                self.agent.wait(15)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
