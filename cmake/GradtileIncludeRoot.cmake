# Headers are included as <gradtile/core/tensor.h>, but their files are core/tensor.h and so on. The build tree therefore has a
# folder of symbolic links. An installation copies the folders to include/gradtile/.
set(GRADTILE_INCLUDE_ROOT ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${GRADTILE_INCLUDE_ROOT}/gradtile)
foreach(folder core attention layers train tools)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${GRADTILE_INCLUDE_ROOT}/gradtile/${folder} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/gradtile.h ${GRADTILE_INCLUDE_ROOT}/gradtile/gradtile.h SYMBOLIC)
