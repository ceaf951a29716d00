# Checks the includes of all sources. The top folders are ordered: core, attention, layers, train, cli. No
# file may include a header of a later folder. The calls of deny() below also say which folders inside the top
# folders must not include which others. An installed header may include only installed headers.
cmake_policy(SET CMP0057 NEW)  # if(.. IN_LIST ..)
set(violations "")
file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/core/*.* ${SOURCE_DIR}/attention/*.* ${SOURCE_DIR}/layers/*.* ${SOURCE_DIR}/train/*.*
  ${SOURCE_DIR}/cli/*.*)
set(checked 0)

# deny(FOLDER REGEX): files of FOLDER must not include <gradtile/...> paths that match REGEX.
macro(deny folder regex)
  foreach(file IN LISTS files)
    if(file MATCHES "^${folder}")
      file(STRINGS ${SOURCE_DIR}/${file} includes REGEX "#include <gradtile/(${regex})")
      foreach(include IN LISTS includes)
        string(APPEND violations "${file}: ${include}\n")
      endforeach()
      math(EXPR checked "${checked} + 1")
    endif()
  endforeach()
endmacro()

deny(core/ "(attention|layers|train|cli)/")
deny(attention/ "(layers|train|cli)/")
deny(layers/ "(train|cli)/")
deny(train/ "cli/")

deny("core/(text|io|cpu)/" "core/(gemm|cuda)/")
deny(attention/cpu/ "attention/cuda/")
deny(attention/cuda/ "attention/cpu/")
deny("layers/[^/]*$" "layers/transformer/")
deny("layers/(internal|device)/" "layers/transformer/")
# The folders of train/ that a run uses must not include the run itself.
deny("train/(checkpoint|corpus|cost_model|data|formats|optimizers|parallel|tokenizers)/" "train/(trainer|replica|run/|generation/|evaluation/|live/)")
deny("train/(run|generation|evaluation)/" "train/(trainer|replica|live/)")
deny("train/generation/" "train/(run|evaluation)/")
deny("train/evaluation/" "train/(run|generation)/")
deny("train/(corpus|data|tokenizers|checkpoint|formats)/" "train/(cost_model|parallel|optimizers)/")
deny("train/(corpus|data|tokenizers|checkpoint|optimizers|parallel)/" "train/formats/")
deny("train/optimizers/" "train/cost_model/")
deny("train/(corpus|optimizers|parallel)/" "train/(checkpoint|data|tokenizers)/")

# Headers that an install copies.
foreach(file IN LISTS files)
  if(file MATCHES "\\.h$" AND NOT file MATCHES "(^cli/|/internal/|/device/|^attention/(cpu|cuda)/)")
    file(STRINGS ${SOURCE_DIR}/${file} includes REGEX "#include <gradtile/(.*/(internal|device)/|attention/(cpu|cuda)/|cli/)")
    foreach(include IN LISTS includes)
      string(APPEND violations "${file} is installed: ${include}\n")
    endforeach()
  endif()
endforeach()

file(STRINGS ${SOURCE_DIR}/gradtile.h includes REGEX "#include <gradtile/")
foreach(include IN LISTS includes)
  string(REGEX REPLACE ".*<gradtile/(.*)>.*" "\\1" header "${include}")
  if(NOT EXISTS ${SOURCE_DIR}/${header} OR header MATCHES "internal/")
    string(APPEND violations "gradtile.h: ${include}\n")
  endif()
endforeach()

if(checked LESS 100)
  message(FATAL_ERROR "only ${checked} files found under ${SOURCE_DIR}")
endif()
if(violations)
  message(FATAL_ERROR "includes against the direction core <- attention <- layers <- train <- cli, or of what is not installed:\n${violations}")
endif()
