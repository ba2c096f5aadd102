# Installs a tree that can be moved: bin/ftrun finds its modules in ../lib relative to its own path,
# and LibTorch as described in lib/base/torch_folder.h.
include(GNUInstallDirs)
set(CMAKE_INSTALL_LIBDIR lib)
set(share "${CMAKE_INSTALL_DATADIR}/ftrun")

install(TARGETS ftrun RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(FTRUN_ENGINE)
  foreach(module ftrun_engine_module ftrun_cuda ftrun_nccl)
    if(TARGET ${module})
      set_target_properties(${module} PROPERTIES INSTALL_RPATH "\$ORIGIN")
      install(TARGETS ${module} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    endif()
  endforeach()
endif()

install(PROGRAMS
  scripts/prepare_data.py scripts/import_checkpoint.py scripts/export_gguf.py scripts/make_model.py
  scripts/follow_run.py
  DESTINATION "${share}/scripts")
install(FILES
  scripts/environment.py scripts/output_mark.py scripts/script_errors.py scripts/text_files.py
  DESTINATION "${share}/scripts")
install(DIRECTORY scripts/training_data scripts/gguf_models scripts/checkpoint_import
  DESTINATION "${share}/scripts"
  FILES_MATCHING PATTERN "*.py")
foreach(folder slurm kubernetes container)
  if(EXISTS "${PROJECT_SOURCE_DIR}/scripts/${folder}")
    install(DIRECTORY scripts/${folder} DESTINATION "${share}/scripts" USE_SOURCE_PERMISSIONS)
  endif()
endforeach()
install(DIRECTORY configs DESTINATION "${share}")
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES README.md CHANGELOG.md LICENSE SECURITY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# The completions and the manual page are made from the declared options, so that they are never
# stale.
set(made "${PROJECT_BINARY_DIR}/shell")
install(CODE "
  file(MAKE_DIRECTORY \"${made}\")
  foreach(words
      \"manual;ftrun.1\" \"completion;bash;ftrun.bash\"
      \"completion;zsh;_ftrun\" \"completion;fish;ftrun.fish\")
    list(POP_BACK words file)
    execute_process(
      COMMAND \"$<TARGET_FILE:ftrun>\" \${words} OUTPUT_FILE \"${made}/\${file}\"
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(FILES "${made}/ftrun.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(FILES "${made}/ftrun.bash"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME ftrun)
install(FILES "${made}/_ftrun" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${made}/ftrun.fish"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
