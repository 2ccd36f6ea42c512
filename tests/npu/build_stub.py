# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries of CANN that torch_npu is linked with, for a machine that has none: stubcann.c, and symbols that
do nothing for all else that the installed wheel names. Does not know what the tests do with them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("stubcann.c")
CFLAGS = ("-O1", "-fPIC", "-shared", "-w")

# Symbols that the loader wants.
RUNTIME = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl)\w+")
ATB = re.compile(r"_ZN3atb\w+")
# An operation of ATB is made by one symbol for each type of parameters: atb::CreateOperation<atb::infer::RopeParam>.
ATB_OPERATION = re.compile(r"_ZN3atb15CreateOperationINS_5infer\d+(\w+?)ParamEEE")
ATB_CONTEXT = "_ZN3atb13CreateContextEPPNS_7ContextE"
# Operations are looked up by name, each in two parts: aclnnAdd, aclnnAddGetWorkspaceSize.
OPERATION = re.compile(rb"\0((?:aclnn|Atb)[A-Z]\w*)(?=\0)")
WORKSPACE = "GetWorkspaceSize"
# Looked up by name too, and refused where they are not found.
LOOKED_UP = [
    "aclSetCompileopt",
    "aclrtCtxSetSysParamOpt",
    "aclrtSetSysParamOpt",
    "aclrtGetDeviceUtilizationRate",
    "aclrtMemsetAsync",
    "aclrtGetStreamOverflowSwitch",
    "aclrtSetStreamOverflowSwitch",
    "aclrtSetDeviceSatMode",
    "aclrtSetOpExecuteTimeOut",
    "aclrtSetOpWaitTimeout",
    "aclrtPeekAtLastError",
    "aclrtGetLastError",
    "aclrtDestroyStreamForce",
    "aclrtSetStreamFailureMode",
    "aclrtSetStreamAttribute",
    "aclmdlRIDebugPrint",
    "aclmdlRIDestroy",
    "aclmdlRICaptureThreadExchangeMode",
]
ARGUMENTS = ("Tensor", "Scalar", "IntArray", "BoolArray", "FloatArray", "TensorList", "ScalarList")
ARGUMENT_CALLS = ["aclDestroyAclOpExecutor", "aclGetViewShape", "InitHugeMemThreadLocal", "UnInitHugeMemThreadLocal"]
ARGUMENT_CALLS += ["ReleaseHugeMem", *(f"aclDestroy{name}" for name in ARGUMENTS)]

# What stubcann.c defines takes the place of a weak symbol.
MACROS = """
extern int stub_launch(const char *);
extern int stub_new_operation(const char *, void **);
extern int stub_new_context(void **);
#define NOTHING(name) __attribute__((weak)) int name(void) { return 0; }
#define HANDLE(name) void *name(void) { static char handle[256]; return handle; }
#define LAUNCH(name) int name(void) { return stub_launch(#name); }
#define NEW_OPERATION(symbol, name) int symbol(void *p, void **made) { return stub_new_operation(name, made); }
#define NEW_CONTEXT(symbol) int symbol(void **made) { return stub_new_context(made); }
"""


def build(package: Path, out: Path) -> None:
    """package: the directory of the installed torch_npu. out is then a LD_LIBRARY_PATH."""
    libraries = sorted((package / "lib").glob("*.so"))
    wanted = {name for library in libraries for name in _undefined(library)}
    named = {name.decode() for library in libraries for name in OPERATION.findall(library.read_bytes())}
    operations = {name.removesuffix(WORKSPACE) for name in named}

    runtime = {name for name in wanted if RUNTIME.fullmatch(name)} | set(LOOKED_UP)
    _compile(out, "libascendcl.so", _calls("NOTHING", runtime), [str(SOURCE), "-pthread"])
    operators = _calls("LAUNCH", operations) + _calls("NOTHING", {name + WORKSPACE for name in operations})
    operators += _calls("NOTHING", ARGUMENT_CALLS) + _calls(
        "HANDLE", [f"aclCreate{argument}" for argument in ARGUMENTS]
    )
    for name in ("libopapi.so", "libnnopbase.so"):
        _compile(out, name, operators)
    _compile(out, "libatb.so", "".join(map(_atb_call, sorted(filter(ATB.fullmatch, wanted)))))
    for name in ("libacl_op_compiler.so", "libhccl.so", "libge_runner.so", "libgraph.so", "libacl_tdt_channel.so"):
        _compile(out, name, "")


def _undefined(library: Path) -> list[str]:
    listing = subprocess.check_output(["nm", "-D", "--undefined-only", library], text=True)
    return [line.split()[-1].split("@")[0] for line in listing.splitlines()]


def _calls(macro: str, names: Iterable[str]) -> str:
    return "".join(f"{macro}({name})\n" for name in sorted(names))


def _atb_call(symbol: str) -> str:
    if symbol == ATB_CONTEXT:
        return f"NEW_CONTEXT({symbol})\n"
    made = ATB_OPERATION.match(symbol)
    return f'NEW_OPERATION({symbol}, "atb{made[1]}")\n' if made else f"NOTHING({symbol})\n"


def _compile(out: Path, name: str, symbols: str, extra: Iterable[str] = ()) -> None:
    """Each but libascendcl.so needs that one, so that what is looked up in any is found."""
    source = out / f"{name}.c"
    source.write_text(MACROS + symbols)
    runtime = [] if name == "libascendcl.so" else ["-Wl,--no-as-needed", f"-L{out}", "-lascendcl"]
    command = ["cc", *CFLAGS, str(source), *extra, "-o", str(out / name), f"-Wl,-soname,{name}", *runtime]
    subprocess.check_call(command)
