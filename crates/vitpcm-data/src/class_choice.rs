//! Chooses a data set's classes and their order: from its class list, its layout, or the tags found.

use crate::listing::ClassNames;
use crate::spelling::{ClassLookup, Spellings};
use crate::{DataError, OpenOptions, Problem, ProblemKind};
use std::collections::HashSet;
use std::path::Path;
use vitpcm_masks::{BACKGROUND, Classes, class_name_fault};

/// The class list that the user names, or that lies in the folder.
pub(crate) fn read_class_list(
    root: &Path,
    options: &OpenOptions,
    problems: &mut Vec<Problem>,
) -> Result<Option<Classes>, DataError> {
    if let Some(file) = &options.classes {
        return Ok(Some(Classes::from_file(file)?));
    }
    let own_list = root.join("classes.txt");
    if !own_list.is_file() {
        return Ok(None);
    }
    let classes = Classes::from_file(&own_list).map_err(|error| {
        let detail = format!("{error}; not used");
        problems.push(Problem::new(ProblemKind::UnreadableAnnotation, own_list, detail));
    });
    Ok(classes.ok())
}

/// The classes without a class list: those that the layout names, or the names found.
pub(crate) fn choose_classes(
    root: &Path,
    class_names: ClassNames,
    spellings: &Spellings,
    problems: &mut Vec<Problem>,
) -> Result<Classes, DataError> {
    let met = spellings.class_names();
    let classes = match class_names {
        ClassNames::Given(names) => {
            let mut seen = HashSet::new();
            let is_new = |name: &String| !name.is_empty() && name != BACKGROUND && seen.insert(name.clone());
            let is_usable = |name: &String| {
                let fault = class_name_fault(name).map(|fault| format!("{fault}; it is left out"));
                problems.extend(
                    fault.as_ref().map(|it| Problem::new(ProblemKind::UnreadableAnnotation, root, it)),
                );
                fault.is_none()
            };
            Classes::from_names(names.into_iter().filter(is_new).filter(is_usable))
        }
        ClassNames::VocIfMet => {
            let voc = Classes::voc();
            let lookup = ClassLookup::new(&voc);
            let is_voc = met.is_empty() || met.iter().any(|name| lookup.index_of(name).is_some());
            if is_voc { Ok(voc) } else { Classes::from_names(met) }
        }
        ClassNames::Met => Classes::from_names(met),
    };
    classes.map_err(|source| DataError::Classes { path: root.to_path_buf(), source })
}
