"""What renters type for image, command and environment."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.containers import (
    TEMPLATES,
    CommandNotValid,
    CudaTooOld,
    EnvironmentNotValid,
    ImageNotValid,
    cuda_wanted,
    parse_command,
    parse_environment,
    parse_image,
    refuse_newer_cuda,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("ubuntu", "", "ubuntu", "", ""),
        ("ubuntu:24.04", "", "ubuntu", "24.04", ""),
        (" pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime ", "", "pytorch/pytorch", "2.8.0-cuda12.8-cudnn9-runtime", ""),
        ("ghcr.io/acme/a__b/c-d:V1", "ghcr.io", "acme/a__b/c-d", "V1", ""),
        ("registry.example.com:5000/team/app@" + DIGEST, "registry.example.com:5000", "team/app", "", DIGEST),
        ("nvcr.io/nvidia/cuda:12.4.1-base@" + DIGEST, "nvcr.io", "nvidia/cuda", "12.4.1-base", DIGEST),
    ],
)
def test_references_are_taken_apart(text: str, registry: str, repository: str, tag: str, digest: str):
    image = parse_image(text)
    assert (image.registry, image.repository, image.tag, image.digest) == (registry, repository, tag, digest)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "ubuntu:24.04"),
        ("https://hub.docker.com/r/x", "without https://"),
        ("docker run ubuntu", "without spaces"),
        ("Ubuntu", "lower case: ubuntu"),
        ("ubuntu:", "stands the tag"),
        ("ubuntu:a b", "without spaces"),
        ("ubuntu:" + "a" * 129, "stands the tag"),
        ("ubuntu@sha256:123", "64 hexadecimal digits"),
        ("ubuntu@md5:" + "0" * 32, "64 hexadecimal digits"),
        ("/ubuntu", "repository:tag"),
        ("a//b", "repository:tag"),
        ("-ubuntu", "repository:tag"),
        ("ubuntu/../x", "repository:tag"),
        ("$(reboot)", "repository:tag"),
        ("-x.com/ubuntu", "registry's name"),
        ("صورة", "Only letters"),
        ("a" * 256, "longer than 255"),
        ("ubuntu\x00", "Only letters"),
    ],
)
def test_what_is_no_image_is_refused_with_what_to_write(text: str, remedy: str):
    with pytest.raises(ImageNotValid, match=remedy.replace("(", r"\(").replace(".", r"\.")):
        parse_image(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", []),
        ("   ", []),
        ("nvidia-smi", ["nvidia-smi"]),
        ("python train.py --name 'my run'", ["python", "train.py", "--name", "my run"]),
        ('echo "a\\"b"', ["echo", 'a"b']),
        ("a && b", ["sh", "-c", "a && b"]),
        ("a | b > c", ["sh", "-c", "a | b > c"]),
        ("echo $HOME", ["sh", "-c", "echo $HOME"]),
        ("echo one\r\necho 'two\r\nthree'", ["sh", "-c", "echo one\necho 'two\nthree'"]),
        ("echo 'a; b'", ["echo", "a; b"]),
    ],
)
def test_commands_arrive_as_typed(text: str, command: list[str]):
    assert parse_command(text) == command


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo 'open", "left open"),
        ('echo "open', "left open"),
        ("a\\", "left open"),
        ("x" * 20_000, "16 KiB"),
        ("a\x00b", "no process"),
        ("a " * 300, "256 words"),
    ],
)
def test_commands_that_cannot_be_run_say_why(text: str, why: str):
    with pytest.raises(CommandNotValid, match=why):
        parse_command(text)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00$`\n\r"), min_size=1), min_size=1, max_size=8)
)
def test_any_quoted_argument_list_is_read_back(words: list[str]):
    command = parse_command(shlex.join(words))
    assert command in (words, ["sh", "-c", shlex.join(words).strip()])


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("", {}),
        ("A=1\n\n# no\n  # neither\nB=two words = three", {"A": "1", "B": "two words = three"}),
        ("export A=1\r\nEMPTY=", {"A": "1", "EMPTY": ""}),
        ("QUOTED='kept as it is'", {"QUOTED": "'kept as it is'"}),
    ],
)
def test_environment_lines(text: str, environment: dict[str, str]):
    assert parse_environment(text) == environment


@pytest.mark.parametrize(
    ("text", "why"),
    [("A=1\nB", "Line 2.*no ="), ("1A=1", "not a variable"), ("A B=1", "not a variable"), ("A=1\nA=2", "Line 2.*twice"),
     ("nvidia_visible_devices=all", "set by the host"), ("A=\x00", "no process"), ("=1", "not a variable"),
     ("\n".join(f"V{n}=" for n in range(129)), "at most 128"), ("A=" + "x" * 40_000, "32 KiB")],
)  # fmt: skip
@pytest.mark.case("marketplace-46")
def test_environment_lines_that_are_refused_name_their_line(text: str, why: str):
    with pytest.raises(EnvironmentNotValid, match=why):
        parse_environment(text)


@pytest.mark.case("marketplace-18")
@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", "12.8"),
        ("nvidia/cuda:13.0.1-base-ubuntu24.04", "13.0"),
        ("ubuntu:24.04", ""),
        ("x/y:cu12.4", "12.4"),
    ],
)
def test_the_cuda_version_an_image_needs_is_read_from_its_name(image: str, wanted: str):
    assert cuda_wanted(parse_image(image)) == wanted
    refuse_newer_cuda(parse_image(image), "13.0")
    refuse_newer_cuda(parse_image(image), "")
    if wanted:
        with pytest.raises(CudaTooOld, match="needs CUDA"):
            refuse_newer_cuda(parse_image(image), "11.8")


def test_the_curated_images_and_their_commands_are_valid():
    for template in TEMPLATES:
        parse_image(template.image)
        parse_command(template.command)
