# libtorch as installed in the Python environment, CPU or CUDA build, as one interface target.
# Plain include paths and libraries: TorchConfig's own search for CUDA needs a full toolkit.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import os, torch; r = os.path.dirname(torch.__file__); print(r, torch.__version__, torch.version.cuda or '', sep=';', end='')"
  OUTPUT_VARIABLE torch_info COMMAND_ERROR_IS_FATAL ANY)
list(GET torch_info 0 TORCH_ROOT)
list(GET torch_info 1 TORCH_VERSION)
list(GET torch_info 2 TORCH_CUDA_VERSION)
if(TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "lins needs torch >= 2.11, found ${TORCH_VERSION} in ${TORCH_ROOT}")
endif()
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_ROOT}")

add_library(lins_torch INTERFACE)
target_include_directories(lins_torch SYSTEM INTERFACE
  ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(lins_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC)
# libtorch_cpu holds most operators, registered at load time: it must stay linked.
target_link_directories(lins_torch INTERFACE ${TORCH_ROOT}/lib)
target_link_options(lins_torch INTERFACE -Wl,--no-as-needed,-rpath,${TORCH_ROOT}/lib)
target_link_libraries(lins_torch INTERFACE torch_cpu torch c10)
target_link_libraries(lins_torch INTERFACE Threads::Threads)
