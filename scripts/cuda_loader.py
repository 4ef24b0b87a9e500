#!/usr/bin/env python3
"""NVIDIA's libraries, loaded when they are first called: C source on stdout, for the linker of a program with the feature `cuda`.

    python3 scripts/cuda_loader.py MAJOR > cuda_loader.c      # MAJOR: of the CUDA toolkit, 13

candle links these libraries, so that such a program would start only where all of them are. An object file with their functions takes
their place: each function finds its library by dlopen at the first call and jumps there. Where a library is missing, the function returns
an error of that library; `open_cuda` has told the user before. x86-64 Linux. The functions are those that cudarc (Cargo.lock) declares.
"""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Of cudarc: the folder; the library's name at run time; what its functions return where it is missing (an error that they know).
LIBRARIES = [
    ("driver", "libcuda.so.1", 303),  # CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
    ("cublas", "libcublas.so.{major}", 1),  # CUBLAS_STATUS_NOT_INITIALIZED
    ("cublaslt", "libcublasLt.so.{major}", 1),
    ("curand", "libcurand.so.10", 203),  # CURAND_STATUS_INITIALIZATION_FAILED
    ("nvrtc", "libnvrtc.so.{major}", 11),  # NVRTC_ERROR_INTERNAL_ERROR
]

HEAD = r"""
#include <dlfcn.h>
#include <stddef.h>

struct function { const char *name; void **slot; unsigned library; };
static const char *const LIBRARIES[] = { %(libraries)s };
%(missing)s
static int (*const MISSING[])(void) = { %(missing_names)s };

/* What a function's first call jumps to. Several threads may come here at once; all find the same. */
__attribute__((used)) void *vitpcm_cuda_function(unsigned long index);

/* Arguments are kept as the caller left them: six integers, eight floats and rax. */
__asm__(
    ".text\n"
    ".type vitpcm_cuda_first_call,@function\n"
    "vitpcm_cuda_first_call:\n"
    "  push %%rdi\n  push %%rsi\n  push %%rdx\n  push %%rcx\n  push %%r8\n  push %%r9\n  push %%rax\n"
    "  sub $136, %%rsp\n"
    "  movups %%xmm0, (%%rsp)\n  movups %%xmm1, 16(%%rsp)\n  movups %%xmm2, 32(%%rsp)\n  movups %%xmm3, 48(%%rsp)\n"
    "  movups %%xmm4, 64(%%rsp)\n  movups %%xmm5, 80(%%rsp)\n  movups %%xmm6, 96(%%rsp)\n  movups %%xmm7, 112(%%rsp)\n"
    "  mov 192(%%rsp), %%rdi\n"
    "  call vitpcm_cuda_function\n"
    "  mov %%rax, %%r11\n"
    "  movups (%%rsp), %%xmm0\n  movups 16(%%rsp), %%xmm1\n  movups 32(%%rsp), %%xmm2\n  movups 48(%%rsp), %%xmm3\n"
    "  movups 64(%%rsp), %%xmm4\n  movups 80(%%rsp), %%xmm5\n  movups 96(%%rsp), %%xmm6\n  movups 112(%%rsp), %%xmm7\n"
    "  add $136, %%rsp\n"
    "  pop %%rax\n  pop %%r9\n  pop %%r8\n  pop %%rcx\n  pop %%rdx\n  pop %%rsi\n  pop %%rdi\n"
    "  add $8, %%rsp\n"
    "  jmp *%%r11\n");

#define FUNCTION(index, name)                                                                                          \
    __attribute__((visibility("hidden"))) extern char first_##name[];                                                  \
    __attribute__((visibility("hidden"), used)) void *slot_##name = first_##name;                                      \
    __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n  jmp *slot_" #name "(%%rip)\n"           \
            ".hidden first_" #name "\n.globl first_" #name "\nfirst_" #name ":\n  push $" #index "\n  jmp vitpcm_cuda_first_call\n");

"""

TAIL = r"""
__attribute__((visibility("hidden"))) void *vitpcm_cuda_function(unsigned long index) {
    const struct function *wanted = &FUNCTIONS[index];
    void *library = dlopen(LIBRARIES[wanted->library], RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, wanted->name) : NULL;
    if (!found) return (void *)MISSING[wanted->library];
    __atomic_store_n(wanted->slot, found, __ATOMIC_RELEASE);
    return found;
}
"""


def cudarc():
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--features", "vitpcm-cli/cuda"]
    graph = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    return next(os.path.dirname(package["manifest_path"]) for package in graph["packages"] if package["name"] == "cudarc")


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit("usage: cuda_loader.py MAJOR")
    sources, functions = os.path.join(cudarc(), "src"), {}
    for number, (folder, _, _) in enumerate(LIBRARIES):
        with open(os.path.join(sources, folder, "sys", "mod.rs"), encoding="utf-8") as file:
            names = re.findall(r"^ *pub unsafe fn ((?:cu|nvrtc)\w+)\(", file.read(), flags=re.M)
        if not names:
            sys.exit(f"cudarc declares no functions in {folder}")
        for name in names:
            functions.setdefault(name, number)
    ordered = sorted(functions.items())
    head = HEAD % {
        "libraries": ", ".join('"%s"' % name.format(major=sys.argv[1]) for _, name, _ in LIBRARIES),
        "missing": "\n".join(f"static int no_{folder}(void) {{ return {error}; }}" for folder, _, error in LIBRARIES),
        "missing_names": ", ".join(f"no_{folder}" for folder, _, _ in LIBRARIES),
    }
    lines = [f"FUNCTION({index}, {name})" for index, (name, _) in enumerate(ordered)]
    table = [f'    {{ "{name}", &slot_{name}, {library} }},' for name, library in ordered]
    print(head + "\n".join(lines) + "\n\nstatic const struct function FUNCTIONS[] = {\n" + "\n".join(table) + "\n};\n" + TAIL)


if __name__ == "__main__":
    main()
