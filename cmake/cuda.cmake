# The CUDA build: kernels and NCCL, beside the CUDA build of torch that torch.cmake found. Needs nvcc;
# nothing here needs a GPU. LINS_CUDA: AUTO takes what is there, ON insists, OFF leaves it out.
# CMAKE_CUDA_ARCHITECTURES defaults to A100, H100, B200.
find_program(LINS_NVCC nvcc HINTS ENV CUDACXX /usr/local/cuda/bin ${TORCH_ROOT}/../nvidia/cu13/bin)
if(LINS_CUDA STREQUAL "AUTO")
  set(LINS_CUDA OFF)
  if(TORCH_CUDA_VERSION AND LINS_NVCC)
    set(LINS_CUDA ON)
  elseif(TORCH_CUDA_VERSION)
    message(STATUS "no nvcc: lins is built without CUDA")
  endif()
endif()
if(LINS_CUDA)
  if(NOT TORCH_CUDA_VERSION)
    message(FATAL_ERROR "LINS_CUDA=ON needs a CUDA build of torch; ${TORCH_ROOT} has torch ${TORCH_VERSION}")
  elseif(NOT LINS_NVCC)
    message(FATAL_ERROR "LINS_CUDA=ON needs nvcc in PATH, in /usr/local/cuda/bin, or in CUDACXX")
  endif()
  set(CMAKE_CUDA_COMPILER ${LINS_NVCC})
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
  endif()
  set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O2")
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # torch's own, below

  # Headers and libraries come with the toolkit or with torch's own wheels.
  get_filename_component(cuda_root ${LINS_NVCC} REALPATH)
  get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)
  set(wheels ${TORCH_ROOT}/../nvidia)
  find_path(CUDA_INCLUDE crt/host_defines.h REQUIRED  # of the compiler: torch's wheels lack it
    PATHS ${cuda_root}/include /usr/local/cuda/include ${wheels}/cu13/include)
  find_path(CUSPARSE_INCLUDE cusparse.h REQUIRED  # torch's headers ask for it
    PATHS ${cuda_root}/include ${wheels}/cu13/include ${wheels}/cusparse/include /usr/local/cuda/include)
  find_path(NCCL_INCLUDE nccl.h REQUIRED
    PATHS ${wheels}/nccl/include ${wheels}/cu13/include ${cuda_root}/include /usr/local/cuda/include /usr/include)
  find_library(CUDA_RUNTIME NAMES libcudart.so.13 libcudart.so.12 cudart REQUIRED
    PATHS ${wheels}/cu13/lib ${wheels}/cuda_runtime/lib ${cuda_root}/lib64 /usr/local/cuda/lib64)
  get_filename_component(cuda_lib ${CUDA_RUNTIME} DIRECTORY)
  message(STATUS "CUDA ${TORCH_CUDA_VERSION} of torch, kernels for ${CMAKE_CUDA_ARCHITECTURES} by ${LINS_NVCC}")

  add_library(lins_cuda INTERFACE)
  target_include_directories(lins_cuda SYSTEM INTERFACE ${CUDA_INCLUDE} ${NCCL_INCLUDE} ${CUSPARSE_INCLUDE})
  target_link_options(lins_cuda INTERFACE -Wl,-rpath,${cuda_lib})
  target_link_libraries(lins_cuda INTERFACE torch_cuda c10_cuda ${CUDA_RUNTIME})
endif()
