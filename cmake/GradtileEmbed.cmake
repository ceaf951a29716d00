# gradtile_embed(TARGET HEADER FUNCTION FILE...): makes the text of files, given relative to the project, a part of a program. HEADER
# declares FUNCTION, a function without arguments that returns std::span<const gradtile::EmbeddedFile>. The
# build copies the text, so it always equals the files that the build compiles.
#
# The build runs this file as a script, with OUTPUT, HEADER, FUNCTION, ROOT and FILES.
if(CMAKE_SCRIPT_MODE_FILE)
  set(code "// Made by cmake/GradtileEmbed.cmake.\n#include <array>\n#include <${HEADER}>\nstd::span<const gradtile::EmbeddedFile> ${FUNCTION}() {\n"
           "static constexpr std::array files{\n")
  string(JOIN "" code ${code})
  foreach(file IN LISTS FILES)
    file(READ "${ROOT}/${file}" text)
    string(APPEND code "gradtile::EmbeddedFile{\"${file}\", R\"embedded(${text})embedded\"},\n")
  endforeach()
  file(WRITE "${OUTPUT}" "${code}};\nreturn files;\n}\n")
  return()
endif()

set(GRADTILE_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(gradtile_embed target header function)
  string(MAKE_C_IDENTIFIER ${function} name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE paths)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DHEADER=${header} -DFUNCTION=${function} -DROOT=${PROJECT_SOURCE_DIR} "-DFILES=${ARGN}"
            -P ${GRADTILE_EMBED_SCRIPT}
    DEPENDS ${paths} ${GRADTILE_EMBED_SCRIPT} COMMENT "Embedding ${name}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
