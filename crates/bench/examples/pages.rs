//! Man pages of `fastmap` and of each of its subcommands, and completions for bash, zsh and fish: of the command's own definition,
//! written below a directory as they are installed below `share`. `make build` runs it, so that `make install` needs no Rust, and the
//! command carries none of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Sections that a paragraph behind the options can be, by the words that it begins with, in the order of man-pages(7). Others are notes.
const SECTIONS: [&str; 5] = ["Exit status", "Environment", "Files", NOTES, "Examples"];
const NOTES: &str = "Notes";
/// Its first heading has the version's date.
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");

/// Completes the command after `fastmap run --`, and its arguments, which `clap_complete` does for zsh only.
const BASH_AFTER_RUN: &str = r#"
_fastmap_or_command() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((at + 1 == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            COMPREPLY=()
        fi
        return
    done
    _fastmap "$@"
}
if [[ ${BASH_VERSINFO[0]} -eq 4 && ${BASH_VERSINFO[1]} -ge 4 || ${BASH_VERSINFO[0]} -gt 4 ]]; then
    complete -F _fastmap_or_command -o nosort -o bashdefault -o default fastmap
else
    complete -F _fastmap_or_command -o bashdefault -o default fastmap
fi
"#;
const FISH_AFTER_RUN: &str = r#"
function __fastmap_after_run
    set -l words (commandline -opc)
    test "$words[2]" = run; and contains -i -- -- $words
end
function __fastmap_run_command
    set -l words (commandline -opc)
    set -e words[1..(__fastmap_after_run)]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end
complete -c fastmap -n "__fastmap_after_run >/dev/null" -f -a "(__fastmap_run_command)"
"#;

fn main() -> io::Result<()> {
    let to = PathBuf::from(std::env::args_os().nth(1).expect("usage: pages DIRECTORY"));
    // Nothing of an earlier version stays.
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let mut command = whole();
    let file = |name: &str| -> io::Result<File> {
        let path = to.join(name);
        fs::create_dir_all(path.parent().expect("a name below it"))?;
        File::create(path)
    };
    for (shell, name, more) in [
        (Shell::Bash, "bash-completion/completions/fastmap", BASH_AFTER_RUN),
        (Shell::Zsh, "zsh/site-functions/_fastmap", ""),
        (Shell::Fish, "fish/vendor_completions.d/fastmap.fish", FISH_AFTER_RUN),
    ] {
        let mut to = file(name)?;
        clap_complete::generate(shell, &mut command, "fastmap", &mut to);
        to.write_all(more.as_bytes())?;
    }
    let pages = to.join("man/man1");
    fs::create_dir_all(&pages)?;
    let mut command = whole().disable_help_subcommand(true);
    command.build();
    write_pages(&command, None, &pages)
}

/// The command, and what `fastmap-bench` does for two of its subcommands.
fn whole() -> Command {
    let bench = fastmap_bench::cli().name("bench").subcommand_help_heading("EXPERIMENTS");
    let report = bench.find_subcommand("report").expect("it is there").clone();
    let bench = bench.mut_subcommand("report", |report| report.hide(true));
    fastmap_cli::command().mut_subcommand("bench", |_| bench).mut_subcommand("report", |_| report)
}

/// The page of a command and those of its subcommands; `above` is whose subcommand it is.
fn write_pages(command: &Command, above: Option<&Command>, to: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, Some(command), to)?;
    }
    let (_, date) = CHANGELOG.lines().find_map(|line| line.strip_prefix("## ")?.split_once(", ")).expect("a heading");
    let source = concat!("fastmap ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date(date).source(source).manual("FastMap");
    let mut page = File::create(to.join(man.get_filename()))?;
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    after_options(&mut roff, &command.get_after_help().map(ToString::to_string).unwrap_or_default());
    if let Some(above) = above {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold(above.get_display_name().unwrap_or_else(|| above.get_name())), roman("(1)")]);
    }
    roff.to_writer(&mut page)
}

/// What the help says behind the options.
fn after_options(roff: &mut Roff, help: &str) {
    let paragraphs = help.split("\n\n").filter(|paragraph| !paragraph.is_empty()).map(|paragraph| {
        let (name, text) = paragraph.split_once(':').unwrap_or_default();
        let text = text.strip_prefix([' ', '\n']).unwrap_or(text);
        if SECTIONS.contains(&name) { (name, capitalised(text)) } else { (NOTES, paragraph.to_owned()) }
    });
    let paragraphs: Vec<_> = paragraphs.collect();
    for section in SECTIONS {
        let of_it = || paragraphs.iter().filter(|(name, _)| *name == section);
        if of_it().next().is_some() {
            roff.control("SH", [section.to_uppercase().as_str()]);
        }
        for (number, (_, text)) in of_it().enumerate() {
            if number > 0 {
                roff.control("PP", []);
            }
            paragraph(roff, text, section != "Examples");
        }
    }
}

/// Lines of text, and between them lines that are indented: rows of a term and, two spaces or more behind it, what it means, on further
/// lines too; or, where there are no such rows, what stands as it is.
fn paragraph(roff: &mut Roff, text: &str, may_have_rows: bool) {
    let lines: Vec<&str> = text.lines().collect();
    let mut after_rows = false;
    for part in lines.chunk_by(|one, next| one.starts_with(' ') == next.starts_with(' ')) {
        let has_rows = may_have_rows && part[0].starts_with(' ') && part[0].trim_start().contains("  ");
        if !part[0].starts_with(' ') {
            if after_rows {
                roff.control("PP", []);
            }
            part.iter().for_each(|line| _ = roff.text([roman(*line)]));
        } else if has_rows {
            for line in part {
                match line.strip_prefix("  ").filter(|row| !row.starts_with(' ')) {
                    Some(row) => {
                        let (term, meaning) = row.split_once("  ").unwrap_or((row, ""));
                        roff.control("TP", []).text([bold(term)]);
                        if !meaning.is_empty() {
                            roff.text([roman(meaning.trim_start())]);
                        }
                    }
                    None => _ = roff.text([roman(line.trim_start())]),
                }
            }
        } else {
            roff.control("EX", []);
            part.iter().for_each(|line| _ = roff.text([roman(*line)]));
            roff.control("EE", []);
        }
        after_rows = has_rows;
    }
}

/// A section begins with a sentence.
fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}
