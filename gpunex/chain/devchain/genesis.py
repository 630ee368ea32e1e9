"""How a chain begins: keys, a USDC-like mint, the treasury. Each step is done only if it is missing, so a killed start is finished by the next."""

import json
import os
from pathlib import Path

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction
from spl.token.constants import MINT_LEN, TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, initialize_mint2
from spl.token.models import InitializeMint2Params

from gpunex.chain.addresses import ata
from gpunex.chain.devchain.chain import Chain
from gpunex.chain.devchain.journal import Journal
from gpunex.chain.transfers import DECIMALS, KeyFileRefused, load_key, sign

LAMPORTS_PER_SOL = 1_000_000_000
FAUCET_SOL = 500_000_000
TREASURY_SOL = 1_000


def open_chain(data: Path) -> tuple[Chain, Keypair]:
    """The chain in the folder ``data`` and its faucet's key; begins one where there is none.

    Leaves ``treasury.json``, ``faucet.json`` and ``mint.json`` (solana-keygen files, 0600) and ``chain.json``: the addresses of mint,
    treasury and faucet, the genesis hash, and where the key files are. Raises KeyFileRefused, JournalDamaged, JournalInUse, ReplayDiffers.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = Journal(data / "journal")
    fresh = journal.is_empty
    treasury, faucet, mint = (_key(data / f"{name}.json", make=fresh) for name in ("treasury", "faucet", "mint"))
    chain = Chain(journal, faucet=str(faucet.pubkey()), faucet_lamports=FAUCET_SOL * LAMPORTS_PER_SOL)
    if chain.svm.get_account(mint.pubkey()) is None:
        _land(chain, faucet, _open_mint(chain, faucet.pubkey(), mint.pubkey()), mint)
    if chain.token_account(Pubkey.from_string(ata(str(treasury.pubkey()), str(mint.pubkey())))) is None:
        _land(chain, faucet, _open_treasury(faucet.pubkey(), treasury.pubkey(), mint.pubkey()))
    facts = {
        "mint": str(mint.pubkey()),
        "treasury": str(treasury.pubkey()),
        "faucet": str(faucet.pubkey()),
        "genesis_hash": chain.genesis_hash,
        "treasury_key_file": str((data / "treasury.json").resolve()),
        "faucet_key_file": str((data / "faucet.json").resolve()),
    }
    write_atomically(data / "chain.json", json.dumps(facts, indent=2) + "\n", mode=0o644)
    return chain, faucet


def write_atomically(path: Path, text: str, *, mode: int) -> None:
    """The file is there whole and on disk, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    draft.replace(path)


def _key(path: Path, *, make: bool) -> Keypair:
    if not path.exists():
        if not make:
            raise KeyFileRefused(f"{path}: missing, though the chain has begun")
        write_atomically(path, json.dumps(list(bytes(Keypair()))), mode=0o600)
    return load_key(path)


def _open_mint(chain: Chain, faucet: Pubkey, mint: Pubkey) -> list[Instruction]:
    """As USDC: six decimals, an issuer that can mint and freeze."""
    return [
        create_account(
            CreateAccountParams(
                from_pubkey=faucet,
                to_pubkey=mint,
                lamports=chain.svm.minimum_balance_for_rent_exemption(MINT_LEN),
                space=MINT_LEN,
                owner=TOKEN_PROGRAM_ID,
            )
        ),
        initialize_mint2(
            InitializeMint2Params(
                decimals=DECIMALS,
                program_id=TOKEN_PROGRAM_ID,
                mint=mint,
                mint_authority=faucet,
                freeze_authority=faucet,
            )
        ),
    ]


def _open_treasury(faucet: Pubkey, treasury: Pubkey, mint: Pubkey) -> list[Instruction]:
    return [
        transfer(TransferParams(from_pubkey=faucet, to_pubkey=treasury, lamports=TREASURY_SOL * LAMPORTS_PER_SOL)),
        create_idempotent_associated_token_account(faucet, treasury, mint),
    ]


def _land(chain: Chain, payer: Keypair, instructions: list[Instruction], *others: Keypair) -> None:
    blockhash, last = chain.latest_blockhash()
    signed = sign(
        payer=payer, instructions=instructions, blockhash=blockhash, last_valid_block_height=last, others=others
    )
    landed = chain.land(VersionedTransaction.from_bytes(signed.raw))
    if landed is None or landed.err is not None:
        raise RuntimeError(f"the chain could not be set up: {landed.err if landed else 'not accepted'}")
