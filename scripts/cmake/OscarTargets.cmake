# SPDX-License-Identifier: MIT
# How targets are made here: one static library per folder, one plug-in per folder that needs libtorch, one test binary per
# tested folder.
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths count from the checkout, so that a second clone finds what the first has compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# Codecs are defined to the bit: a*b+c is two roundings everywhere.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# -Wrestrict: false alarms in std::string's operator+ (GCC 12).
add_library(oscar_warnings INTERFACE)
target_compile_options(oscar_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow=local -Wnon-virtual-dtor -Wold-style-cast
    -Wno-missing-field-initializers $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${OSCAR_WERROR}>>:-Werror>)
if(OSCAR_SANITIZE)
  add_compile_options(-fsanitize=${OSCAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${OSCAR_SANITIZE})
  # Every program has these options, however it is started; plug-ins need none.
  add_library(oscar_sanitizer_options OBJECT ${CMAKE_CURRENT_LIST_DIR}/sanitizer_options.cpp)
  link_libraries($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:oscar_sanitizer_options>>)
endif()

# oscar_add_library(<folder> SOURCES … [PUBLIC …] [PRIVATE …]): target oscar_<folder>.
function(oscar_add_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(oscar_${folder} STATIC ${ARG_SOURCES})
  target_include_directories(oscar_${folder} PUBLIC ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR})
  target_link_libraries(oscar_${folder} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} oscar_warnings)
endfunction()

# oscar_add_plugin(<name> SOURCES … [PRIVATE …]): oscar_<name>.so beside the binary, opened on first use (base/plugin.hpp).
function(oscar_add_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PRIVATE" ${ARGN})
  add_library(oscar_${name} MODULE ${ARG_SOURCES})
  set_target_properties(oscar_${name} PROPERTIES PREFIX "" INSTALL_RPATH "${OSCAR_PLUGIN_RPATH}")
  target_include_directories(oscar_${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR})
  target_link_libraries(oscar_${name} PRIVATE ${ARG_PRIVATE} oscar_warnings)
  set_property(GLOBAL APPEND PROPERTY OSCAR_PLUGINS oscar_${name})
  install(TARGETS oscar_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/oscar)
endfunction()

# oscar_add_test(<name> SOURCES … LIBRARIES … [TOGETHER …] [LABELS …]): every TEST_CASE becomes a ctest named
# <name>/<test case>; those of a file in TOGETHER, which share what takes longer than most of them, are one ctest, <name>/<file
# without _test>. A binary that ends with status 77 counts as skipped (tests/support/main.cpp): the case lacks data and nothing
# failed.
function(oscar_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;TOGETHER;LABELS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name}_test PRIVATE ${ARG_LIBRARIES} oscar_test_support oscar_warnings)
  # Tests run as fast with -O1, for the work is in libraries, and compile in two thirds of the time.
  target_compile_options(${name}_test PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  set(properties SKIP_RETURN_CODE 77 TIMEOUT 600)
  if(ARG_LABELS)
    list(APPEND properties LABELS ${ARG_LABELS})
  endif()
  set(spec)
  foreach(file IN LISTS ARG_TOGETHER)
    string(REPLACE _test.cpp "" test ${name}/${file})
    add_test(NAME ${test} COMMAND ${name}_test "--source-file=*/${file}")
    set_tests_properties(${test} PROPERTIES ${properties})
    list(APPEND spec "*/${file}")
  endforeach()
  if(spec)
    list(JOIN spec "," spec)
    set(spec TEST_SPEC "*" "--source-file-exclude=${spec}") # behind the filter of names any other may follow
  endif()
  doctest_discover_tests(${name}_test ${spec} TEST_PREFIX "${name}/" PROPERTIES ${properties})
endfunction()
