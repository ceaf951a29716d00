# gradtile_options: compile flags of all gradtile sources. Programs that use the library do not inherit them.
add_library(gradtile_options INTERFACE)
target_compile_options(gradtile_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion>
  # nvcc passes designated initialisers to the host compiler as positional ones, for which missing fields would be reported.
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>
  # No code uses errno of math functions or floating-point traps. Without these flags GCC cannot vectorise loops with sqrt or
  # selects.
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math>)
# Messages and debuggers show core/tensor.h itself, not the link that it was included through.
target_compile_options(gradtile_options INTERFACE
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${GRADTILE_INCLUDE_ROOT}/gradtile=${PROJECT_SOURCE_DIR}>>
  $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${GRADTILE_INCLUDE_ROOT}/gradtile=${PROJECT_SOURCE_DIR}>>)
target_compile_definitions(gradtile_options INTERFACE
  GRADTILE_FLOAT16=$<BOOL:${GRADTILE_FLOAT16}> GRADTILE_HAVE_CUDA=$<BOOL:${GRADTILE_HAVE_CUDA}>)
# Device code calls constexpr host functions, for example of std::array and Philox.
target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
# Sources in target_sources(gradtile PRIVATE ...) are optimised fully. Sources in gradtile_cold_sources(...) are optimised lightly and
# compiled several at a time, which shortens the build. Only a source without loops over elements, whose run time is negligible, may be cold.
option(GRADTILE_UNITY "Compile cold sources several at a time" ON)
option(GRADTILE_UNITY_TESTS "Compile tests several at a time" ${GRADTILE_UNITY})
# Compiles sources of one folder together, at most six at a time, so names in anonymous namespaces must be unique within a folder only.
function(gradtile_unity_by_folder target is_on)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} ABSOLUTE)
    get_filename_component(folder ${folder} DIRECTORY)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    math(EXPR batch "0${count_${folder}} / 6")
    math(EXPR count_${folder} "0${count_${folder}} + 1")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${folder}_${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${is_on} UNITY_BUILD_MODE GROUP)
endfunction()
set(GRADTILE_LIGHTLY_OPTIMISED $<$<CONFIG:Release>:-O1>)
# Headers that nearly every source includes.
set(GRADTILE_PRECOMPILED_HEADERS <algorithm> <filesystem> <functional> <optional> <sstream> <gradtile/core/tensor.h>)
# Adds sources to gradtile_cold, whose objects become part of the library.
function(gradtile_cold_sources)
  target_sources(gradtile_cold PRIVATE ${ARGN})
endfunction()
if(GRADTILE_WERROR)
  target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  if(GRADTILE_NATIVE)
    target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  else()
    target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
  endif()
  target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mprefer-vector-width=512>)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  if(GRADTILE_NATIVE AND NOT CMAKE_CROSSCOMPILING)
    target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mcpu=native>)
  endif()
  target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-psabi>)  # notes about GCC 10's calls
endif()
# Sources for instruction sets that the building machine may lack; the library chooses at run time.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-mavx512f -mavx512bf16" GRADTILE_COMPILER_HAS_AVX512_BF16)
# GCC 12's own AVX-512 header causes these two warnings (GCC bug 105593).
set(GRADTILE_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -Wno-uninitialized -Wno-maybe-uninitialized)
set(GRADTILE_AVX512_BF16_FLAGS ${GRADTILE_AVX512_FLAGS} -mavx512bf16)
set(GRADTILE_SANITIZE "" CACHE STRING "Sanitizers to build with, for example address,undefined or thread")
if(GRADTILE_SANITIZE)
  # -fno-sanitize-recover generates no code for continuing after a finding, which saves a quarter of the compile time.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GRADTILE_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  # Clang, unlike GCC, also reports the address of a row of a tensor without elements, whose data is null; nothing reads there.
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=pointer-overflow>)
  endif()
  # Sanitizers intercept dlopen. The loader then searches the program's RPATH but not its RUNPATH, hence --disable-new-dtags.
  add_link_options(-fsanitize=${GRADTILE_SANITIZE} -Wl,--disable-new-dtags)
endif()
