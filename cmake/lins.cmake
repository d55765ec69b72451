# One folder, one library; one folder of tests, one test program.

function(lins_compile_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-maybe-uninitialized>  # GCC 12 sees ghosts in InlinedVector
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
  if(LINS_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LINS_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${LINS_SANITIZE})
  endif()
endfunction()

# lins_library(<folder> DEPS <targets>... [SRCS <files>...]): SRCS defaults to every .cc of the folder.
function(lins_library folder)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_SRCS)
    file(GLOB ARG_SRCS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  endif()
  add_library(lins_${folder} STATIC ${ARG_SRCS})
  target_include_directories(lins_${folder} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(lins_${folder} PUBLIC ${ARG_DEPS})
  lins_compile_options(lins_${folder})
endfunction()

# lins_test(<folder> DEPS <targets>...): tests/<folder>/*.cc become one program, found by ctest.
function(lins_test folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB srcs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cc)
  if(NOT srcs)
    return()
  endif()
  add_executable(${folder}_test ${srcs})
  target_link_libraries(${folder}_test PRIVATE ${ARG_DEPS} GTest::gtest_main)
  lins_compile_options(${folder}_test)
  target_compile_options(${folder}_test PRIVATE -fPIC)  # as the precompiled header was
  add_test(NAME ${folder} COMMAND ${folder}_test --gtest_brief=1)
  set(timeout 300)
  if(LINS_SANITIZE)  # ten times as slow
    set(timeout 1500)
  endif()
  set_tests_properties(${folder} PROPERTIES
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} ENVIRONMENT "OMP_NUM_THREADS=1" TIMEOUT ${timeout})
endfunction()
