# The installed headers are those that a root header includes, directly or through others: gradtile.h for the framework, and
# tools/tools.h for the tools.
get_filename_component(GRADTILE_SOURCE_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

# gradtile_public_headers(RESULT ROOT...): paths relative to the project, without duplicates.
function(gradtile_public_headers result)
  set(headers "")
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open header)
    if(header IN_LIST headers)
      continue()
    endif()
    list(APPEND headers ${header})
    if(EXISTS ${GRADTILE_SOURCE_ROOT}/${header})
      file(STRINGS ${GRADTILE_SOURCE_ROOT}/${header} includes REGEX "^#include <gradtile/")
      foreach(include IN LISTS includes)
        string(REGEX REPLACE ".*<gradtile/(.*)>.*" "\\1" include "${include}")
        list(APPEND open ${include})
      endforeach()
    endif()
  endwhile()
  set(${result} ${headers} PARENT_SCOPE)
endfunction()
