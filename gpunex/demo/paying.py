"""The steps of the check that are about money: a deposit, the bill, payouts and returns, their statements and proofs."""

import csv
import hashlib
import html
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from solders.keypair import Keypair

from gpunex.chain.addresses import ata
from gpunex.chain.rpc import Rpc
from gpunex.demo.browser import Browser, Page, Unexpected
from gpunex.kit.money import MICRO, as_decimal_string, parse_usdc

DEPOSIT_MICRO = 25 * MICRO
REQUESTED = "7.50"
RETURNED = "3.25"
PRICE = "0.36"  # USDC per GPU per hour: 100 micro-USDC a second, so that every figure can be recomputed by eye
COMMUNITY_FEE_BPS = 1000


class Paying:
    """What the story does with money; ``Story`` has the people, and the rental that costs it."""

    url: str
    root: Path
    password: str
    provider_email: str
    rental_path: str
    wallet: Keypair
    provider: Browser
    renter: Browser
    admin: Browser
    charged_micro = earned_micro = 0
    payout_id = statement_sha256 = ""

    def _end_agent(self) -> None:
        raise NotImplementedError

    def _pay_a_request(self) -> str:
        page = self.renter.get("/balance/requests")
        page = self.renter.submit(page, page.form(having="amount"), amount=REQUESTED)
        path, link = page.path, re.search(r'href="(solana:[^"]+)"', page.body)
        if link is None or f"amount={REQUESTED.rstrip('0')}&" not in link[1]:
            raise Unexpected(f"the request has no payment link of its amount: {page.summary()}")
        self.renter.submit(page, page.form(action="/pay"))
        for _ in self._until("the request to be paid", seconds=30):
            page = self.renter.get(path)
            if REQUESTED + "0000" in page.text.replace(" ", "") and page.links(r"^/balance/requests$"):
                balance = self.renter.get("/balance").text
                if as_decimal_string(DEPOSIT_MICRO + parse_usdc(REQUESTED)) in balance:
                    return f"{REQUESTED} USDC, known by the reference key in its link"
        raise Unexpected(f"the request was not paid: {page.summary()}")

    def _bill(self) -> str:
        page = self.renter.get(self.rental_path)
        seconds = int(page.find(r"([\d,]+) billed seconds?").replace(",", ""))
        shown = re.search(r"Charged (\d+\.\d{2}) ?(\d{4}) ", page.text)
        if shown is None:
            raise Unexpected(f"the rental's page does not say what was charged: {page.summary()}")
        self.charged_micro = parse_usdc(shown[1] + shown[2])
        expected = parse_usdc(PRICE) * seconds // 3600
        if self.charged_micro != expected or seconds < 10:
            raise Unexpected(
                f"{seconds} s at {PRICE} USDC an hour were charged {self.charged_micro} micro-USDC, not {expected}"
            )
        self.earned_micro = expected - expected * COMMUNITY_FEE_BPS // 10_000
        left = as_decimal_string((DEPOSIT_MICRO + parse_usdc(REQUESTED) - expected) // 10_000 * 10_000)
        for browser, path, amount in (
            (self.renter, "/balance", left),
            (self.provider, "/provider/earnings", as_decimal_string(self.earned_micro)),
        ):
            for _ in self._until("the amount", seconds=10):
                page = browser.get(path)
                if amount in page.text.replace(" ", ""):
                    break
            else:
                raise Unexpected(f"{path} does not show {amount}: {page.summary()}")
        self._end_agent()  # its silence grows while the money moves
        return f"{seconds} s, {as_decimal_string(expected)} USDC charged, {as_decimal_string(self.earned_micro)} to the provider"

    def _pay(self) -> str:
        address = self._connect_wallet(self.provider, "/provider/payouts/wallet", self.wallet)
        queue = self.admin.get("/admin/providers/provider/?q=" + self.provider_email)
        links = queue.links(r"/admin/providers/provider/\d+/change")
        if not links:
            raise Unexpected("the administrator does not find the provider")
        page = self.admin.get(urlsplit(links[0]).path)
        pay = page.links(r"off-cycle|off_cycle|pay-now")
        if not pay:
            raise Unexpected("the provider's page in the administration has no off-cycle payout")
        page = self.admin.get(urlsplit(pay[0]).path)
        self.admin.submit(page, page.form(having="reason"), reason="First payout of the check")
        with Rpc(settings.SOLANA_RPC_URLS) as rpc:
            for _ in self._until("the payout on chain", seconds=40):
                page = self.provider.get("/provider/payouts")
                signature = re.search(r"\b([1-9A-HJ-NP-Za-km-z]{86,88})\b", page.body)
                if (
                    signature
                    and rpc.get_token_balance(ata(address, settings.USDC_MINT)) == self.earned_micro
                    and "paid" in page.text.lower()
                ):
                    return f"{as_decimal_string(self.earned_micro)} USDC, signature {signature[1][:10]}…"
        raise Unexpected(f"the payout did not arrive: {page.summary()}")

    def _connect_wallet(self, browser: Browser, start: str, wallet: Keypair) -> str:
        """Name the wallet, confirm who one is, and sign the text that the page shows with the wallet's key."""
        address = str(wallet.pubkey())
        page = self._confirmed(browser, start)
        page = browser.submit(page, page.form(having="address"), address=address, last_characters=address[-6:])
        text = re.search(r'data-message="([^"]*)"', page.body)
        if text is None:
            raise Unexpected(f"there is no text for the wallet to sign: {page.summary()}")
        form = page.form(having="signature")
        refused = browser.submit(page, form, expect=422, signature=str(Keypair().sign_message(b"another")))
        signature = str(wallet.sign_message(html.unescape(text[1]).encode()))
        browser.submit(refused, refused.form(having="signature"), signature=signature)
        return address

    def _confirmed(self, browser: Browser, path: str) -> Page:
        """A page that asks for the password once more, past that."""
        page = browser.get(path)
        if "/reauthenticate" in page.path:
            page = browser.submit(page, page.form(having="password"), password=self.password)
        return page

    def _statement(self) -> str:
        receipts = self.provider.get("/provider/payouts").links(r"^/provider/payouts/[0-9a-f-]{36}$")
        if not receipts:
            raise Unexpected("the payouts page has no receipt")
        self.payout_id = receipts[0].rpartition("/")[2]
        number, body, moved = self._statement_of(self.provider, receipts[0])
        if (body["amount_micro"], moved) != (self.earned_micro, self.earned_micro):
            raise Unexpected(f"statement {number} pays {body['amount_micro']} micro-USDC of {moved}")
        lines = f"{len(body['lines'])} lines to {as_decimal_string(moved)} USDC"
        return f"{number}, {lines}, SHA-256 {self.statement_sha256[:12]}…"

    def _statement_of(self, browser: Browser, receipt_path: str) -> tuple[str, dict[str, Any], int]:
        """A receipt's statement: its number, its body, and what the lines of its CSV come to. Raises Unexpected if they disagree."""
        receipt = browser.get(receipt_path)
        statements = receipt.links(r"^/statements/[0-9a-f-]{36}$")
        if not statements:
            raise Unexpected(f"the receipt names no statement: {receipt.summary()}")
        page = browser.get(statements[0])
        number = page.find(r"\b([PB]-\d{6})\b")
        files = {kind: browser.client.get(f"{statements[0]}/statement.{kind}") for kind in ("json", "csv", "pdf")}
        body, self.statement_sha256 = files["json"].json(), hashlib.sha256(files["json"].content).hexdigest()
        for where in (page, receipt):
            if self.statement_sha256 not in where.text:
                raise Unexpected(f"{where.path} does not show the SHA-256 of the statement's JSON")
        rows = list(csv.reader(io.StringIO(files["csv"].text.removeprefix("\ufeff"))))[1:]
        moved = sum(_micro(row[12]) for row in rows if row[12])
        if body["opening_micro"] + moved != body["closing_micro"] or not files["pdf"].content.startswith(b"%PDF"):
            raise Unexpected(f"statement {number}: the CSV's lines come to {moved} micro-USDC, or there is no PDF")
        return number, body, moved

    def _proof(self) -> str:
        with Browser(self.url) as anybody:
            for _ in self._until("the payout to be marked as paid", seconds=20):
                page = anybody.get(f"/verify/{self.payout_id}")
                if "This payout is proved" in page.text:
                    break
            else:
                raise Unexpected(f"the public page does not call the payout proved: {page.summary()}")
        for part in (self.statement_sha256, f"gpunex:{self.payout_id}:{self.statement_sha256}"):
            if part not in page.text:
                raise Unexpected(f"the public proof does not say {part!r}: {page.summary()}")
        if self.provider_email in page.body or str(self.wallet.pubkey()) in page.body:
            raise Unexpected("the public proof names who was paid")
        report = self._manage("verify_payout", self.payout_id, "--json")
        if not report["all_passed"] or {check["outcome"] for check in report["checks"]} != {"passed"}:
            raise Unexpected(f"verify_payout: {report['checks']}")
        return f"{len(report['checks'])} checks passed, /verify/{self.payout_id[:8]}…"

    def _return(self) -> str:
        wallet = Keypair()
        address = self._connect_wallet(self.renter, "/balance/wallet", wallet)
        page = self._confirmed(self.renter, "/balance/return")
        form = page.form(having="key")
        # Pressed twice: one return, by the key that the page made.
        for _again in range(2):
            page = self.renter.submit(page, form, how="amount", amount=RETURNED)
        with Rpc(settings.SOLANA_RPC_URLS) as rpc:
            for _ in self._until("the returned balance on chain", seconds=40):
                page = self.renter.get("/balance/return")
                receipts = page.links(r"^/balance/returns/[0-9a-f-]{36}$")
                got = rpc.get_token_balance(ata(address, settings.USDC_MINT))
                if receipts and got == parse_usdc(RETURNED) and "final on chain" in self.renter.get(receipts[0]).text:
                    break
            else:
                raise Unexpected(f"the returned balance did not arrive: {page.summary()}")
        number, body, _moved = self._statement_of(self.renter, receipts[0])
        report = self._manage("verify_payout", receipts[0].rpartition("/")[2], "--json")
        if len(receipts) != 1 or body["amount_micro"] != parse_usdc(RETURNED) or not report["all_passed"]:
            raise Unexpected(f"{len(receipts)} returns, statement {number}, {report['checks']}")
        return f"{RETURNED} USDC once, though pressed twice; {number}, {len(report['checks'])} checks passed"

    def _books(self) -> str:
        report = self._manage("verify_books", "--json")
        if report["drift_micro"] != 0:
            raise Unexpected(f"drift: {report['drift_micro']} micro-USDC")
        return f"{report['transfers']} transfers, {len(report['checks'])} proofs, drift 0"

    def _manage(self, *command: str) -> Any:
        """What a command says, as JSON. Raises Unexpected if it fails."""
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=self.root,
            env={**os.environ, "GPUNEX_EMBEDDED": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise Unexpected(f"{command[0]} failed: {(done.stdout + done.stderr).strip()[-400:]}")
        return json.loads(done.stdout)

    def _until(self, what: str, *, seconds: float) -> Iterator[float]:
        """Yield until the time is up; the caller returns when it has seen what it waits for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield deadline - time.monotonic()
            time.sleep(0.4)


def _micro(text: str) -> int:
    """An amount of a CSV, which may be negative."""
    return -parse_usdc(text[1:]) if text.startswith("-") else parse_usdc(text)
