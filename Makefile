# ounce. `make` builds ./ounce; `make test` builds with ASan and UBSan and runs everything that CI runs.
# B is the build folder: build/release, build/asan, build/fuzz differ only in flags.
CC      ?= cc
B       ?= build/release
DEPS    := libpcre2-8 libutf8proc jansson yaml-0.1 libcurl
LOADED  := openblas # when it is first needed (src/quantize/blas.c): its headers alone
OPT     ?= -O3
SAN     ?=
CFLAGS  ?= -g
# no -ffast-math: sums are in a fixed order, and NaN means something. Contraction off: an FMA is written where it is meant.
ALL_CFLAGS := -std=c17 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wvla -Wno-unused-parameter -Werror=implicit-function-declaration \
              -ffp-contract=off -fno-math-errno -pthread -Isrc -Iinclude -MMD -MP $(OPT) $(SAN) $(CFLAGS) $(shell pkg-config --cflags $(DEPS) $(LOADED))
# Builds with sanitizers also prove that the token loop allocates nothing: the linker sends malloc through base/mem.c.
ifneq ($(SAN),)
ALL_CFLAGS += -DOZ_ALLOC_GUARD -fno-omit-frame-pointer
ALL_LDFLAGS := $(SAN) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
endif
LIBS    := $(shell pkg-config --libs $(DEPS)) -lm -pthread -ldl

ROOMS   := base number checkpoint comm text kernel kernel/ref kernel/x86 scheme model quantize engine measure
# MPI=1 where Open MPI is installed; MPI= builds without ranks.
MPI     ?= $(shell pkg-config --exists ompi-c 2>/dev/null && echo 1)
LIB_SRC := $(sort $(foreach r,$(ROOMS),$(filter-out src/comm/comm_$(if $(MPI),none,mpi).c,$(wildcard src/$(r)/*.c))))
ifneq ($(MPI),)
ALL_CFLAGS += $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c))
LIBS    += $(shell pkg-config --libs ompi-c)
endif

# CUDA: on where nvcc is; CUDA=0 leaves it out. The runtime is linked statically and the driver loaded at run time, so the program also runs where
# there is none. Objects are the same for all builds: sanitizers do not reach into them.
comma     := ,
NVCC      ?= nvcc
CUDA      ?= $(if $(shell command -v $(NVCC)),1,0)
ifeq ($(CUDA),1)
ALL_CFLAGS += -DOZ_CUDA
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_OBJ  := $(patsubst %.cu,build/cuda/%.o,$(sort $(wildcard src/kernel/cuda/*.cu)))
# no contraction here either: an FMA is written where it is meant
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -gencode arch=compute_90a,code=sm_90a -DOZ_CUDA -Isrc -Xcompiler -Wall,-Wextra,-Wno-unused-parameter,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
CUDA_LIB  := $(firstword $(dir $(wildcard $(addsuffix /libcudart_static.a,$(CUDA_HOME)/lib64 $(CUDA_HOME)/lib $(CUDA_HOME)/targets/x86_64-linux/lib))))
# With sanitizers the shared one: the guard of the token loop is for our own allocations, and the runtime makes some when a graph is captured.
LIBS      += $(if $(SAN),$(CUDA_LIB)libcudart.so -Wl$(comma)-rpath$(comma)$(CUDA_LIB),$(CUDA_LIB)libcudart_static.a) -lrt
endif
CLI_SRC := $(sort $(wildcard src/cli/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o) $(CUDA_OBJ)
CLI_OBJ := $(CLI_SRC:%.c=$(B)/%.o)

all: ounce
ounce: $(B)/ounce
	@cp -f $< $@
$(B)/ounce: $(CLI_OBJ) $(B)/libounce.a
	$(CC) $(ALL_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$(B)/libounce.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

# ISA flags are per object file and nowhere else.
%_avx2.o: ISA := -mavx2 -mfma -mf16c
%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mavx512bf16 -mfma -mf16c
%_amx.o: ISA := -mamx-tile -mamx-int8 -mamx-bf16 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mfma -mf16c

$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $<";) $(CC) $(ALL_CFLAGS) $(ISA) -c -o $@ $<

build/cuda/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

build/cuda-mutated/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -DOZ_MUTATE -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Unit tests: one program a file in tests/unit, linked with the library and cmocka.
UNIT_SRC := $(sort $(wildcard tests/unit/*.c))
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(B)/unit/%)
$(B)/unit/%: $(B)/tests/unit/%.o $(B)/libounce.a
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka
unit: $(UNIT_BIN)

CHECK_SRC := $(sort $(wildcard tests/check/*.c))
$(B)/check: $(CHECK_SRC:%.c=$(B)/%.o) $(B)/libounce.a
	$(CC) $(ALL_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

check: $(if $(CHECK_SRC),$(B)/check $(B)/check-emulated)

# The checker over CUDA kernels that carry the bugs of kernel/cuda/mutate.h; their objects come before the library, which has them without.
$(B)/check-mutated: $(CHECK_SRC:%.c=$(B)/%.o) $(CUDA_OBJ:build/cuda/%=build/cuda-mutated/%) $(B)/libounce.a
	$(CC) $(ALL_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

# The checker with AMX computed in plain C (tests/check/emulate): level amx on any machine with AVX-512. The emulation's objects come before the library.
$(B)/emulated/%.o: %.c Makefile tests/check/emulate/amx.h
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $< (AMX emulated)";) $(CC) $(ALL_CFLAGS) $(ISA) -include tests/check/emulate/amx.h -c -o $@ $<
$(B)/check-emulated: $(CHECK_SRC:%.c=$(B)/%.o) $(B)/tests/check/emulate/amx.o $(patsubst %.c,$(B)/emulated/%.o,$(wildcard src/kernel/x86/*_amx.c)) $(B)/libounce.a
	$(CC) $(ALL_LDFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

# Everything that CI runs, on programs built with ASan and UBSan; ./ounce without them, for tests of speed and memory.
TEST_BUILD := B=build/asan OPT=-O1 SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
test: ounce
	$(MAKE) $(TEST_BUILD) build/asan/ounce unit check
	tests/run.sh build/asan

# Installs what is missing, builds, fetches the small model, quantizes and measures it, prints the table.
demo:
	scripts/demo.sh

# Fuzz targets: build/fuzz/fuzz_NAME [-max_total_time=600] [CORPUS]
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/%)
fuzz:
	$(MAKE) B=build/fuzz CC=clang OPT=-O1 SAN="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" fuzz-programs
fuzz-programs: $(FUZZ_BIN)
$(B)/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/libounce.a
	$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LIBS)

# What we write, held against the libraries that others read it with (see the script). TEXT=FILE, WINDOWS=N.
interop: ounce
	tests/interop/run.sh

# Speed beside llama.cpp on the same tokens (bench/peers.py says how). Builds the peer from its package into build/venv-peers, unless PYTHON= names one
# that has it. ARGS: --threads 1,2, --rounds 5, --realtime, --json FILE. MODEL=FILE.gguf: another model than SmolLM2-135M-Instruct.
bench-peers: ounce
	bench/peers.sh $(ARGS)

# Every calibrated scheme beside llm-compressor's: bench/quality.sh says what it takes. PEERS=1 makes and measures the peers', too.
bench-quality: ounce
	bench/quality.sh

# The manual page comes from the option tables.
man: ounce
	@mkdir -p docs
	./ounce man > docs/ounce.1

clean:
	rm -rf build ounce
.PHONY: all clean unit check test demo bench-peers bench-quality fuzz fuzz-programs man
.SECONDARY:
-include $(shell find build -name '*.d' 2>/dev/null)
