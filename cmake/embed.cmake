# lins_embed_profiles(<output.cc> <files.json>...): defines ShippedProfiles() of lins_policy/shipped_profiles.h,
# each file by its name without the extension.
function(lins_embed_profiles output)
  set(entries "")
  foreach(file IN LISTS ARGN)
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND entries "    {\"${name}\", R\"lins_json(${text})lins_json\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT
"#include \"lins_policy/shipped_profiles.h\"

namespace lins {

std::vector<ShippedProfile> ShippedProfiles() {
  return {
@entries@  };
}

}  // namespace lins
")
endfunction()
