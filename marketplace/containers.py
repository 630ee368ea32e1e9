"""What a renter wants run, read from what they typed: image reference, command, environment. Pure functions.

Each refuses with what to write instead; nothing is guessed and nothing is dropped in silence.

>>> parse_image("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime").tag
'2.8.0-cuda12.8-cudnn9-runtime'
>>> parse_command("python train.py --name 'my run'")
['python', 'train.py', '--name', 'my run']
>>> parse_command("nvidia-smi && python train.py")
['sh', '-c', 'nvidia-smi && python train.py']
>>> parse_environment("EPOCHS=3\\n# a remark\\nNAME=my run")
{'EPOCHS': '3', 'NAME': 'my run'}
"""

import re
import shlex
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal

IMAGE_LONGEST = 255
COMMAND_LONGEST = 16_384  # bytes; the agent takes four times as much
COMMAND_MOST_WORDS = 256
ENVIRONMENT_LONGEST = 32_768
ENVIRONMENT_MOST = 128

# The grammar of github.com/distribution/reference.
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::\d{1,5})?", re.ASCII
)
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
# Only a shell gives these a meaning.
_SHELL = re.compile(r"[$`\n]")


class ImageNotValid(Refusal):
    code = "image_invalid"
    message = _("“%(text)s” is not an image. %(remedy)s")


class ImageMissing(ImageNotValid):
    message = _("Write the image to run, such as ubuntu:24.04.")


class CommandNotValid(Refusal):
    code = "command_invalid"
    message = _("The command cannot be read: %(why)s")


class EnvironmentNotValid(Refusal):
    code = "environment_invalid"
    message = _("Line %(line)s of the environment: %(why)s")


@dataclass(frozen=True)
class Image:
    """A reference to a container image, taken apart. ``registry`` is empty for Docker Hub."""

    text: str
    registry: str
    repository: str
    tag: str
    digest: str


def parse_image(text: str) -> Image:
    """``[registry/]repository[:tag][@sha256:…]``. Raises ImageNotValid, which says what to write.

    >>> parse_image("ghcr.io/acme/train@sha256:" + 64 * "a").registry
    'ghcr.io'
    """
    text = text.strip()
    _refuse_other_things(text)
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ImageNotValid(text=_short(text), remedy=_("After @ stands sha256: and 64 hexadecimal digits."))
    head, slash, rest = name.partition("/")
    registry = ""
    if slash and ("." in head or ":" in head or head == "localhost"):
        registry, name = head, rest
        if not _HOST.fullmatch(registry):
            raise ImageNotValid(text=_short(text), remedy=_("What stands before the first / is not a registry's name."))
    repository, colon, tag = name.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ImageNotValid(
            text=_short(text), remedy=_("After : stands the tag: letters, digits, . _ and -, as in ubuntu:24.04.")
        )
    if not _PATH.fullmatch(repository):
        raise ImageNotValid(text=_short(text), remedy=_remedy(repository))
    return Image(text=text, registry=registry, repository=repository, tag=tag, digest=digest)


def _refuse_other_things(text: str) -> None:
    remedy: str | Promise | None = None
    if not text:
        raise ImageMissing
    if len(text) > IMAGE_LONGEST:
        remedy = _("It is longer than 255 characters.")
    elif "://" in text:
        remedy = _("Write it without https://, as in ghcr.io/acme/train:1.")
    elif any(character.isspace() for character in text):
        remedy = _("Write the image alone, without spaces; the command has a field of its own.")
    elif not text.isascii() or not text.isprintable():
        remedy = _("Only letters, digits and . _ - / : @ can stand in it.")
    if remedy is not None:
        raise ImageNotValid(text=_short(text), remedy=remedy)


def _remedy(repository: str) -> str | Promise:
    if repository != repository.lower() and _PATH.fullmatch(repository.lower()):
        return _("Repository names are lower case: %(name)s.") % {"name": repository.lower()}
    return _("Write repository:tag, as in pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime.")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def parse_command(text: str) -> list[str]:
    """The argument list of what was typed as in a shell; empty for the image's own command. Raises CommandNotValid.

    Several lines, operators (``&&``, ``|``, ``;``, ``>``) and ``$`` mean something to a shell only, so such a command is
    run by ``sh -c`` exactly as typed; quotes and line breaks inside it arrive as they are.
    """
    text = text.replace("\r\n", "\n").strip()
    if not text:
        return []
    if len(text.encode("utf-8", "surrogatepass")) > COMMAND_LONGEST:
        raise CommandNotValid(why=_("it is longer than 16 KiB. Put a script into the image, or fetch one."))
    if not _is_text(text):
        raise CommandNotValid(why=_("it holds characters that no process can be given."))
    try:
        words = shlex.split(text)
        operators = shlex.shlex(text, posix=True, punctuation_chars=True)
        operators.whitespace_split = True
        needs_shell = bool(_SHELL.search(text)) or any(not set(word) - set("();<>|&") for word in operators)
    except ValueError:
        raise CommandNotValid(why=_("a quotation mark or backslash at its end is left open.")) from None
    if len(words) > COMMAND_MOST_WORDS:
        raise CommandNotValid(why=_("it has more than 256 words."))
    return ["sh", "-c", text] if needs_shell else words


def parse_environment(text: str) -> dict[str, str]:
    """``NAME=value`` a line; empty lines and lines that begin with # are skipped. Raises EnvironmentNotValid with the line."""
    found: dict[str, str] = {}
    if len(text.encode("utf-8", "surrogatepass")) > ENVIRONMENT_LONGEST:
        raise EnvironmentNotValid(line=1, why=_("the whole is longer than 32 KiB."))
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        why: str | Promise | None = None
        if not equals:
            why = _("there is no =. Write NAME=value.")
        elif not _VARIABLE.fullmatch(name):
            why = _("“%(name)s” is not a variable's name: letters, digits and _, no digit first.") % {
                "name": _short(name)
            }
        elif name.upper().startswith("NVIDIA_"):
            why = _("%(name)s is set by the host, so that a job sees its own GPUs only.") % {"name": name}
        elif name in found:
            why = _("%(name)s is there twice.") % {"name": name}
        elif not _is_text(value):
            why = _("the value holds characters that no process can be given.")
        elif len(found) == ENVIRONMENT_MOST:
            why = _("at most 128 variables.")
        if why is not None:
            raise EnvironmentNotValid(line=number, why=why)
        found[name] = value
    return found


def _is_text(text: str) -> bool:
    """No NUL and no half surrogate pair: neither can be handed to a process."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True)
class Template:
    """An image that runs to an end by itself, with a command to begin with. ``cuda_version`` is the CUDA it is built for."""

    key: str
    name: str | Promise
    image: str
    command: str
    cuda_version: str


# Public images by their publishers, each with a command that ends, as a job's does.
TEMPLATES: tuple[Template, ...] = (
    Template(
        "pytorch",
        _("PyTorch 2.5, CUDA 12.4"),
        "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
        'python -c \'import torch; x = torch.rand(4096, 4096, device="cuda"); '
        "[print(step, float((x @ x).mean()), flush=True) for step in range(200)]'",
        "12.4",
    ),
    Template(
        "tensorflow",
        _("TensorFlow 2.17, CUDA 12.3"),
        "tensorflow/tensorflow:2.17.0-gpu",
        "python -c 'import tensorflow as tf; print(tf.config.list_physical_devices(\"GPU\"))'",
        "12.3",
    ),
    Template("cuda", _("CUDA 12.4, shows the GPUs"), "nvidia/cuda:12.4.1-base-ubuntu22.04", "nvidia-smi", "12.4"),
    Template(
        "vectoradd",
        _("CUDA sample, adds two vectors"),
        "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
        "",
        "12.5",
    ),
)


def template_of(image: str) -> Template | None:
    return next((template for template in TEMPLATES if template.image == image), None)


class CudaTooOld(Refusal):
    code = "cuda_too_old"
    message = _(
        "%(image)s needs CUDA %(wanted)s; this host runs CUDA up to %(has)s. Choose an offer with a newer driver."
    )


def refuse_newer_cuda(image: Image, host_cuda: str) -> None:
    """Told before renting where it can be known: the curated images, and tags that name their CUDA version.

    >>> refuse_newer_cuda(parse_image("nvidia/cuda:12.4.1-base-ubuntu22.04"), "12.8")
    >>> cuda_wanted(parse_image("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"))
    '12.8'
    """
    wanted = cuda_wanted(image)
    if wanted and host_cuda and _version(wanted) > _version(host_cuda):
        raise CudaTooOld(image=image.text, wanted=wanted, has=host_cuda)


def cuda_wanted(image: Image) -> str:
    """The CUDA version an image is built for, where its name says so, else an empty text."""
    template = template_of(image.text)
    if template is not None:
        return template.cuda_version
    match = re.search(r"(?:cuda|cu)[-_]?(\d{2})\.(\d{1,2})", image.tag)
    if match is None and image.repository.rpartition("/")[2] == "cuda":
        match = re.match(r"(\d{2})\.(\d{1,2})", image.tag)
    return f"{match[1]}.{match[2]}" if match else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
