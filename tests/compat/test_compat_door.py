"""Only `compat` names the private parts of torch; the other files of the package use its names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytest_trainsafe
from tests.support.compat.private_names import ALLOWED, defined, of_torch, private_uses, sources

PACKAGE = Path(pytest_trainsafe.__file__).parent

PLANTED = {
    "import torch._dynamo": "imports torch._dynamo",
    "from torch.utils._pytree import tree_map": "imports torch.utils._pytree.tree_map",
    "from torch.nn.modules import _Module": "imports torch.nn.modules._Module",
    "def f():\n    import torch._logging as logs": "imports torch._logging",
    "import torch\nn = torch._C._len_torch_dispatch_stack()": "uses torch._C",
    "from torch.distributed import distributed_c10d as c10d\nc10d._world": "uses c10d._world",
    "from torch.nn.parallel import DistributedDataParallel as D\nD._active": "uses D._active",
    "from torch import nn\nmodule = nn.Module\nmodule._call_impl": "uses module._call_impl",
    "import torch\ng, h = torch.autograd, 1\ng._get_sequence_nr()": "uses g._get_sequence_nr",
    "from torch import nn\nd = cast(Any, nn.Module)\nd._x = 1": "uses d._x",
    "def f(tensor):\n    return tensor._version": "uses tensor._version",
    "def f(module):\n    return module.inner._parameters": "uses module.inner._parameters",
    "def f(state):\n    return state._fsdp_param_groups": "uses state._fsdp_param_groups",
    "def f(func):\n    return func._schema.name": "uses func._schema",
    "def f(storage):\n    return storage._cdata": "uses storage._cdata",
    "def f(x):\n    return x._nobody_defines_this": "uses x._nobody_defines_this",
    "def f(x):\n    return getattr(x, '_local_tensor', x)": "uses _local_tensor by getattr",
    "NAME = '_base'\ndef f(x):\n    return hasattr(x, NAME)": "uses _base by hasattr",
    "import sys\nm = sys.modules['torch._dynamo.utils']": "names torch._dynamo.utils",
    "KEPT = frozenset({'_step_count'})": "names _step_count",
    "from pytest_trainsafe.compat.private import Capability": (
        "imports pytest_trainsafe.compat.private.Capability"
    ),
    "class M(TorchDispatchMode):\n    def _should_skip_dynamo(cls): ...": (
        "overrides _should_skip_dynamo"
    ),
}

HARMLESS = (
    "import torch\nx = torch.Tensor.__dict__",
    "import torch\nx = torch.ops.aten._softmax(x, 0, False)",
    "import sys\nframe = sys._getframe(1)",
    "import random\nstate = random._inst",
    "class A:\n    def f(self):\n        return self._version, super()._version",
    "class A:\n    def f(self, other):\n        self._power = 1\n        return other._power",
    "NAME = '_softmax'",
    '"""The docstring of a file names torch._C and _version."""',
    "def f(made):\n    return made._replace(x=1)",
)


@pytest.mark.parametrize(("source", "found"), PLANTED.items())
def test_a_private_name_of_torch_is_found(source: str, found: str) -> None:
    assert found in [each.partition(": ")[2] for each in private_uses(ast.parse(source))]


@pytest.mark.parametrize("source", HARMLESS)
def test_public_names_and_those_of_others_are_not_taken_for_private_names_of_torch(
    source: str,
) -> None:
    tree = ast.parse(source)
    assert private_uses(tree, defined([tree])) == []


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    return sources(PACKAGE)


def test_no_other_file_of_the_package_uses_a_private_name_of_torch(
    trees: dict[str, ast.AST],
) -> None:
    assert len(trees) > 500
    own = defined(trees.values())
    found = [f"{path}:{use}" for path, tree in trees.items() for use in private_uses(tree, own)]
    assert found == []


def test_every_name_that_is_allowed_outside_of_compat_is_used_there(
    trees: dict[str, ast.AST],
) -> None:
    words = {
        word
        for tree in trees.values()
        for node in ast.walk(tree)
        for word in (getattr(node, "attr", None), getattr(node, "value", None))
        if isinstance(word, str)
    }
    assert ALLOWED.keys() - words == set()


def test_the_search_knows_attributes_that_classes_of_torch_set_in_methods() -> None:
    names = {"_version", "_buffers", "_comm_hooks", "_fsdp_param_groups", "_cdata", "_schema"}
    assert names - of_torch() == set()
