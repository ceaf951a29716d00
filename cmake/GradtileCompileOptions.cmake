# gradtile_options: flags every gradtile translation unit is compiled with; nothing here leaks to consumers.
add_library(gradtile_options INTERFACE)
target_compile_options(gradtile_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wno-sign-conversion>
  # No code here reads errno or floating-point traps; without these two flags GCC cannot vectorise loops with sqrt or selects.
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math>)
# Device code calls constexpr functions of the host: std::array's, Philox's.
target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
if(GRADTILE_WERROR)
  target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  if(GRADTILE_NATIVE)
    target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  else()
    target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
  endif()
  target_compile_options(gradtile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-mprefer-vector-width=512>)
endif()
set(GRADTILE_SANITIZE "" CACHE STRING "Sanitizers to build with, for example address,undefined or thread")
if(GRADTILE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GRADTILE_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${GRADTILE_SANITIZE})
endif()
