# Headers are included as <gradtile/core/tensor.h>, and lie in core/tensor.h. A folder of links in the build tree joins the two;
# an install copies the rooms to include/gradtile/.
set(GRADTILE_INCLUDE_ROOT ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${GRADTILE_INCLUDE_ROOT}/gradtile)
foreach(room core attention layers train cli)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${room} ${GRADTILE_INCLUDE_ROOT}/gradtile/${room} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/gradtile.h ${GRADTILE_INCLUDE_ROOT}/gradtile/gradtile.h SYMBOLIC)
