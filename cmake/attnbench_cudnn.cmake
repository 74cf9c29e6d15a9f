# The headers of cudnn-frontend and of cuDNN, when both are there with the CUDA toolkit: the backend
# CUDNN is built on them. The library is found when the program runs. scripts/setup.sh unpacks the
# frontend into build/deps.
option(ATTNBENCH_CUDNN "Use cudnn-frontend when it is found" ON)
set(ATTNBENCH_HAS_CUDNN FALSE)
if(ATTNBENCH_CUDNN AND ATTNBENCH_HAS_TOOLKIT)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h)
  find_path(CUDNN_INCLUDE_DIR cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CUDNN_FRONTEND_INCLUDE_DIR AND CUDNN_INCLUDE_DIR)
    set(ATTNBENCH_HAS_CUDNN TRUE)
  endif()
endif()
# Folder frontend/ of cudnn needs the headers, no_frontend.cpp takes its place.
if(ATTNBENCH_HAS_CUDNN)
  set(ATTNBENCH_CUDNN_EXCLUDE "/no_frontend\\.cpp$")
  add_library(attnbench_cudnn_headers INTERFACE)
  target_include_directories(attnbench_cudnn_headers SYSTEM INTERFACE
    ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR})
  target_compile_definitions(attnbench_cudnn_headers INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
  target_link_libraries(attnbench_cudnn_headers INTERFACE CUDA::cudart_static)
  set(ATTNBENCH_CUDNN_LIBRARY attnbench_cudnn_headers)
  # Why not -O0: it keeps inline functions of the headers that nobody calls, and they call functions of
  # cuDNN that entry_points.cpp does not have.
  set_source_files_properties(
    ${CMAKE_SOURCE_DIR}/src/cudnn/frontend/plan.cpp PROPERTIES COMPILE_OPTIONS -Og)
  # Why hidden: they have the names of the library's own functions.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cudnn/frontend/entry_points.cpp PROPERTIES
    COMPILE_OPTIONS -fvisibility=hidden)
else()
  message(STATUS "cudnn-frontend or cuDNN's headers not found or not wanted: no backend CUDNN")
  set(ATTNBENCH_CUDNN_EXCLUDE "/cudnn/frontend/")
  set(ATTNBENCH_CUDNN_LIBRARY "")
endif()
