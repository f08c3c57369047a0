# stoker_module(NAME HEADERS ... SOURCES ... TESTS ... DEPS ...): a library stoker_NAME with the alias stoker::NAME, and one
# test executable NAME_test when STOKER_TESTS is on. Flags come from the target stoker_flags, linked PRIVATE: nothing leaks to users.

add_library(stoker_flags INTERFACE)
target_compile_options(stoker_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wimplicit-fallthrough
  -ffp-contract=off            # arithmetic that decides is the same on every node; GCC fuses a*b+c otherwise
  -fvisibility=hidden)
if(STOKER_WERROR)
  target_compile_options(stoker_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(stoker_flags INTERFACE -Wthread-safety)
endif()
if(STOKER_SANITIZE)
  target_compile_options(stoker_flags INTERFACE -fsanitize=${STOKER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    $<IF:$<CONFIG:RelWithDebInfo>,-g1,-g>)  # line numbers are enough for reports, and compile in half the time
  target_link_options(stoker_flags INTERFACE -fsanitize=${STOKER_SANITIZE})
endif()
if(STOKER_FUZZ)
  target_compile_options(stoker_flags INTERFACE -fsanitize=fuzzer-no-link)  # what the fuzzer learns coverage from
endif()

# A sanitizer that cannot fail is decoration. Suppressions are files in the root, each line with its issue.
set(STOKER_TEST_ENVIRONMENT
  "ASAN_OPTIONS=halt_on_error=1:detect_leaks=1"
  "TSAN_OPTIONS=halt_on_error=1:suppressions=${PROJECT_SOURCE_DIR}/tsan.supp"
  "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")

# Modules with threads: their tests are what ThreadSanitizer runs.
set(STOKER_THREADED_MODULES base exec exchange mem metric source pipeline peers engine)
if(STOKER_TESTS)
  add_custom_target(threaded_tests)
endif()

function(stoker_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;SOURCES;TESTS;DEPS;TEST_DEPS")
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "stoker_module(${name}): no SOURCES")
  endif()
  add_library(stoker_${name} STATIC ${arg_SOURCES})
  add_library(stoker::${name} ALIAS stoker_${name})
  target_sources(stoker_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/core FILES ${arg_HEADERS})
  target_link_libraries(stoker_${name} PUBLIC ${arg_DEPS} PRIVATE $<BUILD_INTERFACE:stoker_flags>)
  if(STOKER_TESTS AND arg_TESTS)
    add_executable(${name}_test ${arg_TESTS})
    target_link_libraries(${name}_test PRIVATE stoker_${name} stoker_flags ${arg_TEST_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE STOKER_TESTDATA="${PROJECT_SOURCE_DIR}/testdata")
    add_test(NAME ${name} COMMAND ${name}_test)
    set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${STOKER_TEST_ENVIRONMENT}"
      FAIL_REGULAR_EXPRESSION "from 0 test suites ran")  # a suite that tested nothing fails
    if(name IN_LIST STOKER_THREADED_MODULES)
      add_dependencies(threaded_tests ${name}_test)
      set_tests_properties(${name} PROPERTIES LABELS threads)
    endif()
  endif()
endfunction()
