"""Which addresses are wallets: the rules, and what a person is told."""

import uuid

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.constants import TOKEN_PROGRAM_ID

from gpunex.chain import addresses, faucet
from gpunex.chain.addresses import ata, check_wallet, derive_deposit_owner, parse_address
from gpunex.chain.rpc import Rpc, RpcUnavailable
from tests.chain.running import USDC, RunningChain, new_wallet

WALLET = "HN7cABqLq46Es1jh92dQQisAq662SmxELLLsHHe4YWrH"
SEED = bytes(range(32))
ORGANISATION = uuid.UUID("0a7b2f0e-55a1-4c0e-9d4e-2f6b1c0d9e8f")
# A change of this address would lose what people send to the one that they were told.
DEPOSIT_OWNER = "6BVyH6Tahf7DC8ewt5BQQC3MP1ooUdzJ2Rzqodjtu7zb"
NOBODY = Rpc(["http://127.0.0.1:9"], timeout_s=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        WALLET[:-2],
        WALLET + "1",
        f" {WALLET}",
        f"{WALLET}\n",
        WALLET[:20] + " " + WALLET[20:],
        WALLET.replace("H", "0"),
        WALLET.replace("N", "l"),
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "1" * 44,
        "1" + WALLET,
        "\N{ARABIC-INDIC DIGIT ONE}" * 32,
        "\x00" * 32,
        "z" * 44,
        "z" * 10_000,
    ],
)
def test_what_is_not_exactly_one_address_is_refused(text: str) -> None:
    with pytest.raises(addresses.NotAnAddress):
        parse_address(text)


def test_an_address_is_read_as_it_stands() -> None:
    assert parse_address(WALLET) == WALLET


@pytest.mark.spec("H2")
def test_a_wallet_that_was_never_used_is_accepted(chain: RunningChain) -> None:
    wallet = new_wallet()
    assert check_wallet(rpc=chain.rpc, text=wallet) == wallet


def test_a_wallet_that_holds_sol_is_accepted(chain: RunningChain) -> None:
    wallet = new_wallet()
    faucet.give_sol(chain.rpc, wallet, 10_000_000)
    assert check_wallet(rpc=chain.rpc, text=wallet) == wallet


@pytest.mark.case("money-F44")
def test_a_token_account_pasted_as_wallet_is_refused_and_its_wallet_named(chain: RunningChain) -> None:
    wallet = new_wallet()
    chain.fund(wallet, USDC)
    with pytest.raises(addresses.TokenAccountGiven) as caught:
        check_wallet(rpc=chain.rpc, text=ata(wallet, chain.mint))
    assert wallet in str(caught.value)
    assert caught.value.code == "token_account_given"


@pytest.mark.case("money-F44")
def test_a_token_account_that_lies_on_the_curve_is_refused_too(chain: RunningChain) -> None:
    account, wallet = Keypair(), new_wallet()
    chain.open_token_account(account, wallet)
    assert account.pubkey().is_on_curve()
    with pytest.raises(addresses.TokenAccountGiven) as caught:
        check_wallet(rpc=chain.rpc, text=str(account.pubkey()))
    assert wallet in str(caught.value)


def test_a_mint_is_refused_by_what_the_chain_says_of_it(chain: RunningChain) -> None:
    with pytest.raises(addresses.MintGiven):
        check_wallet(rpc=chain.rpc, text=chain.mint)


@pytest.mark.parametrize("mint", sorted(addresses.MINTS))
def test_well_known_mints_are_refused_without_asking(mint: str) -> None:
    with pytest.raises(addresses.MintGiven):
        check_wallet(rpc=NOBODY, text=mint)


@pytest.mark.parametrize("program", sorted(addresses.PROGRAMS))
def test_programs_are_refused_without_asking(program: str) -> None:
    with pytest.raises(addresses.ProgramGiven):
        check_wallet(rpc=NOBODY, text=program)


def test_each_address_on_the_lists_is_one() -> None:
    for listed in addresses.PROGRAMS | addresses.MINTS:
        assert parse_address(listed) == listed


def test_an_account_of_a_program_that_is_on_no_list_is_refused_by_what_the_chain_says_of_it(
    chain: RunningChain,
) -> None:
    slot_hashes = "SysvarS1otHashes111111111111111111111111111"
    assert slot_hashes not in addresses.PROGRAMS
    assert Pubkey.from_string(slot_hashes).is_on_curve()
    with pytest.raises(addresses.ProgramGiven):
        check_wallet(rpc=chain.rpc, text=slot_hashes)


def test_an_address_that_no_key_signs_for_is_refused_with_or_without_the_chain(chain: RunningChain) -> None:
    never_opened = ata(new_wallet(), chain.mint)
    for rpc in (chain.rpc, NOBODY):
        with pytest.raises(addresses.NotAWallet):
            check_wallet(rpc=rpc, text=never_opened)


def test_our_own_addresses_are_refused(chain: RunningChain) -> None:
    treasury = str(chain.treasury.pubkey())
    own = [treasury, ata(treasury, chain.mint)]
    for address in own:
        with pytest.raises(addresses.OwnAddressGiven):
            check_wallet(rpc=chain.rpc, text=address, own=own)


def test_an_address_is_not_accepted_while_no_node_answers() -> None:
    with pytest.raises(RpcUnavailable):
        check_wallet(rpc=NOBODY, text=new_wallet())


def test_every_refusal_says_what_to_do() -> None:
    for refusal in (
        addresses.NotAnAddress(),
        addresses.MintGiven(),
        addresses.ProgramGiven(),
        addresses.NotAWallet(),
        addresses.OwnAddressGiven(),
        addresses.TokenAccountGiven(owner=WALLET),
    ):
        assert str(refusal).endswith((".", "there."))
        assert "%" not in str(refusal)


def test_deposit_addresses_are_for_ever() -> None:
    owner = derive_deposit_owner(SEED, ORGANISATION)
    assert str(owner.pubkey()) == DEPOSIT_OWNER
    assert owner.pubkey().is_on_curve()


def test_deposit_addresses_differ_by_organisation_and_by_seed() -> None:
    organisations = [uuid.uuid4() for _ in range(50)]
    owners = {str(derive_deposit_owner(seed, one).pubkey()) for one in organisations for seed in (SEED, bytes(32))}
    assert len(owners) == 100


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(ValueError):
        derive_deposit_owner(b"short", uuid.uuid4())


def test_the_token_account_is_that_of_the_plain_token_program() -> None:
    mint = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
    seeds = [bytes(Pubkey.from_string(WALLET)), bytes(TOKEN_PROGRAM_ID), bytes(Pubkey.from_string(mint))]
    program = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
    assert ata(WALLET, mint) == str(Pubkey.find_program_address(seeds, program)[0])
