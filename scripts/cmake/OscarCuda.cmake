# SPDX-License-Identifier: MIT
# Decides whether kernels/cuda is built: OSCAR_HAS_CUDA. OSCAR_CUDA=AUTO takes the compiler if there is one that is new
# enough, ON insists on it, OFF does not look.
set(OSCAR_CUDA_MINIMUM 12.8)
set(OSCAR_HAS_CUDA OFF)

# Why the backend is not built: an error if it was asked for, else a line of talk.
function(oscar_no_cuda reason)
  if(OSCAR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "OSCAR_CUDA=ON, but ${reason}. Install the CUDA toolkit ${OSCAR_CUDA_MINIMUM} or newer (nvcc, "
      "cuBLAS and cuSOLVER with their headers) and put nvcc on PATH or set CUDACXX, or configure with -DOSCAR_CUDA=OFF")
  endif()
  message(STATUS "CUDA backend: not built (${reason})")
endfunction()

# The GPUs of this machine, else one alone, which keeps compilation short; the presets for users name more.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status STREQUAL "0")
    set(CMAKE_CUDA_ARCHITECTURES native CACHE STRING "GPUs to compile for")
  else()
    set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "GPUs to compile for")
  endif()
endif()

if(NOT OSCAR_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    oscar_no_cuda("CMake finds no CUDA compiler that works")
  else()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc speaks C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit QUIET)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS OSCAR_CUDA_MINIMUM)
      oscar_no_cuda("${CMAKE_CUDA_COMPILER} is version ${CMAKE_CUDA_COMPILER_VERSION}")
    elseif(NOT TARGET CUDA::cublas OR NOT TARGET CUDA::cusolver OR NOT TARGET CUDA::cudart_static)
      oscar_no_cuda("cuBLAS, cuSOLVER or the static runtime is missing beside ${CMAKE_CUDA_COMPILER}")
    elseif(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND NOT CMAKE_CUDA_ARCHITECTURES_NATIVE)
      oscar_no_cuda("programs of ${CMAKE_CUDA_COMPILER} find no GPU here")
    else()
      set(OSCAR_HAS_CUDA ON)
      if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
        set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
      endif()
      message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
    endif()
  endif()
endif()
