# kvoffload/_C: everything in one shared object that exports PyInit__C alone, needs no CUDA library at load time
# (cudart is static, the driver is looked up at run time) and imports on a machine without driver.
file(GLOB bindings CONFIGURE_DEPENDS csrc/bindings/*.cpp)
if(NOT bindings)
  message(STATUS "kvoffload: csrc/bindings is empty, no Python extension")
  return()
endif()
if(NOT pybind11_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_DIR
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 2.13 CONFIG REQUIRED)
pybind11_add_module(_C MODULE NO_EXTRAS ${bindings})
target_link_libraries(_C PRIVATE kvo_ledger kvo_transfer kvo_storage)
target_compile_definitions(_C PRIVATE KVO_VERSION="${KVO_VERSION}")
target_link_options(_C PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)
if(KVO_WITH_CUDA)
  target_compile_definitions(_C PRIVATE KVO_WITH_CUDA=1)
endif()
install(TARGETS _C LIBRARY DESTINATION kvoffload)
# What `make build` builds: the extension alone, put into the package in the source tree.
add_custom_target(install_module COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --prefix ${CMAKE_SOURCE_DIR}
                  COMMENT "kvoffload/_C into the package" VERBATIM)
add_dependencies(install_module _C)
