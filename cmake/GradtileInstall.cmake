# cmake --install and find_package(gradtile).
