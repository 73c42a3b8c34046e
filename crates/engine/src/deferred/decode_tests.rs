//! Compares stores that trap and are done by decoding with the same instructions done by the processor.

mod forms;
mod machine;

use crate::deferred::decode::{self, What};
use crate::effort::quick_or_full;
use crate::sys::PAGE;
use forms::{Form, Source, forms};
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, OpAccess,
    OpCodeOperandKind as Kind, Register,
};
use machine::{Machine, Page, State, Traps, decode_alone};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::OnceLock;

fn mixer(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

static FORMS: OnceLock<Vec<Form>> = OnceLock::new();

/// How a store names its address.
#[derive(Debug, Clone, Copy)]
enum Address {
    Base(usize, i32),
    Indexed(usize, usize, u32, i32),
    Relative,
}

#[derive(Debug, Clone)]
struct Case {
    form: usize,
    address: Address,
    /// Where the store goes: an offset in the machine's watched pages, whose stores trap.
    at: usize,
    register: usize,
    constant: u64,
    seed: u64,
    /// 0 to 7. Before the store, 7 clears the upper halves of the vector registers, and 6 clears these registers whole.
    clear: u8,
    mask: u8,
    at_border: Option<usize>,
}

fn run(machine: &Machine, forms: &[Form], case: &Case) {
    let form = forms[case.form % forms.len()];
    let mut state = State::random(mixer(case.seed));
    let is_aligned = decode::is_aligned(form.code.mnemonic());
    let offset = if is_aligned { case.at - case.at % form.len } else { case.at };
    let target = machine.watched().start + offset;
    let operand = |base: Register, index: Register, scale: u32, by: i64| {
        let size = if i8::try_from(by).is_ok() { 1 } else { 8 };
        MemoryOperand::new(base, index, scale, by, size, false, Register::None)
    };
    let register = |number: usize| Register::RAX + number as u32;
    let memory = match case.address {
        _ if form.is_moffs => MemoryOperand::with_displ(target as u64, 8),
        Address::Relative => MemoryOperand::with_base_displ(Register::RIP, target as i64),
        Address::Base(base, by) => {
            state.general[base] = (target as u64).wrapping_sub(by as u64);
            operand(register(base), Register::None, 1, by.into())
        }
        // RSP cannot be an index.
        Address::Indexed(base, index, scale, by) => {
            let index = if index == 4 { 5 } else { index };
            if base == index {
                let times = u64::from(scale) + 1;
                state.general[base] = target as u64 / times;
                operand(register(base), register(index), scale, (target as u64 % times) as i64)
            } else {
                let scaled = state.general[index].wrapping_mul(scale.into());
                state.general[base] = (target as u64).wrapping_sub(by as u64).wrapping_sub(scaled);
                operand(register(base), register(index), scale, by.into())
            }
        }
    };
    let constant = match form.code.op_code().op1_kind() {
        Kind::imm16 => case.constant & 0xffff,
        Kind::imm32 => case.constant & 0xffff_ffff,
        Kind::imm32sex64 => case.constant as i32 as u64,
        _ => case.constant & 0xff,
    };
    let source = match form.source {
        Source::Bank(first, count) => {
            let chosen = first + (case.register % count) as u32;
            // AH to BH cannot be named along with R8 to R15.
            let is_high = matches!(chosen, Register::AH | Register::CH | Register::DH | Register::BH);
            let is_extended = |register: Register| register.is_gpr64() && register.number() >= 8;
            if is_high && (is_extended(memory.base) || is_extended(memory.index)) { Register::BL } else { chosen }
        }
        Source::Only(register) | Source::Foreign(register) => register,
        Source::Constant => Register::None,
    };
    let mut instruction = match form.source {
        Source::Constant if form.code == Code::Mov_rm64_imm32 => Instruction::with2(form.code, memory, constant as i32),
        Source::Constant => Instruction::with2(form.code, memory, constant as u32),
        _ if form.has_lane => Instruction::with3(form.code, memory, source, constant as u32),
        _ => Instruction::with2(form.code, memory, source),
    }
    .unwrap();
    // The mask of the elements that are stored, and the bytes of an element.
    let mut left = None;
    if case.mask > 0 && form.code.op_code().can_use_op_mask_register() && is_x86_feature_detected!("avx512bw") {
        let number = case.mask % 7 + 1;
        instruction.set_op_mask(Register::K0 + u32::from(number));
        let element = form.code.op_code().memory_size().element_size();
        let mask = state.masks[usize::from(number)] & u64::MAX >> (64 - form.len / element);
        left = Some((mask, element));
    }
    let clear = match case.clear {
        7 if is_x86_feature_detected!("avx") => Some(Code::VEX_Vzeroupper),
        6 if is_x86_feature_detected!("avx") => Some(Code::VEX_Vzeroall),
        _ => None,
    };
    let (_, traps) = machine.compare(&state, case.at_border, false, &|encoder: &mut Encoder, at: u64| {
        let before = clear.map_or(0, |code| encoder.encode(&Instruction::with(code), at).unwrap());
        encoder.encode(&instruction, at + before as u64).unwrap();
    });
    let touched = left.map_or(form.len, |(mask, element)| mask.count_ones() as usize * element);
    let touched = if form.has_lane { form.len } else { touched };
    let straddles = touched > 0 && offset / PAGE != (offset + touched - 1) / PAGE;
    let scattered = left.is_some_and(|(mask, _)| form.has_lane || mask.trailing_ones() != mask.count_ones());
    let refused = matches!(form.source, Source::Foreign(_)) || straddles || scattered;
    let expected = Traps { kept: usize::from(!refused && touched > 0), refused: usize::from(refused && touched > 0) };
    assert_eq!(traps, expected, "{instruction:?}");
}

fn plain(form: usize, register: usize) -> Case {
    Case {
        form,
        address: Address::Base(3, 0x40),
        at: 0,
        register,
        constant: 0x8182_8384_8586_8788,
        seed: 7,
        clear: 0,
        mask: 0,
        at_border: None,
    }
}

#[test]
fn every_form_stores_from_every_register() {
    let (machine, forms) = (Machine::new(), forms());
    let widths: BTreeSet<usize> = forms.iter().map(|form| form.len).collect();
    println!("{} forms, widths {widths:?}", forms.len());
    assert!([1, 2, 4, 8, 16].iter().all(|width| widths.contains(width)), "{widths:?}");
    for (number, form) in forms.iter().enumerate() {
        let count = match form.source {
            Source::Bank(_, count) => count,
            _ => 1,
        };
        for register in 0..count {
            let case = plain(number, register);
            run(&machine, &forms, &Case { at: register * 64, ..case.clone() });
            run(&machine, &forms, &Case { at: PAGE - form.len, clear: 6 + (register % 2) as u8, ..case.clone() });
            run(&machine, &forms, &Case { at: PAGE - 1, constant: register as u64, mask: register as u8, ..case });
        }
    }
}

#[test]
fn every_register_is_in_addresses() {
    let (machine, forms) = (Machine::new(), forms());
    let form = forms.iter().position(|form| form.code == Code::Mov_rm64_r64).unwrap();
    for base in 0..16 {
        for by in [0, 1, -128, 127, 128, -0x1234_5678] {
            run(&machine, &forms, &Case { address: Address::Base(base, by), at: 40, ..plain(form, 9) });
        }
        for index in 0..16 {
            for scale in [1, 2, 4, 8] {
                let address = Address::Indexed(base, index, scale, index as i32 * 100 - 800);
                run(&machine, &forms, &Case { address, at: 300, ..plain(form, 2) });
            }
        }
    }
}

#[test]
fn instructions_lie_across_pages() {
    let (machine, forms) = (Machine::new(), forms());
    for (number, _) in forms.iter().enumerate() {
        for before in 1..16 {
            let address = if before % 2 == 0 { Address::Relative } else { Address::Indexed(12, 14, 8, 0x12345) };
            run(&machine, &forms, &Case { at_border: Some(before), address, at: 640, ..plain(number, before) });
        }
    }
}

const STRINGS: [(&[u8], usize); 8] = [
    (&[0xaa], 1),
    (&[0x66, 0xab], 2),
    (&[0xab], 4),
    (&[0x48, 0xab], 8),
    (&[0xa4], 1),
    (&[0x66, 0xa5], 2),
    (&[0xa5], 4),
    (&[0x48, 0xa5], 8),
];

struct Repeated {
    string: usize,
    repeated: bool,
    to: usize,
    from: usize,
    count: u64,
    hidden: bool,
}

fn run_string(machine: &Machine, case: &Repeated, seed: u64) -> Traps {
    let mut state = State::random(mixer(seed));
    let other = machine.other();
    for at in other.clone() {
        // SAFETY: the machine's memory, which `compare` hides only later and shows again.
        unsafe { (at as *mut u8).write((at * 11 + at / PAGE) as u8) };
    }
    (state.general[7], state.general[6], state.general[1]) =
        ((machine.watched().start + case.to) as u64, (other.start + case.from) as u64, case.count);
    let (code, _) = STRINGS[case.string];
    let (_, traps) = machine.compare(&state, None, case.hidden, &|encoder, _| {
        let prefix = if case.repeated { &[0xf3][..] } else { &[] };
        prefix.iter().chain(code).for_each(|byte| encoder.write_u8(*byte));
    });
    traps
}

#[test]
fn repeated_stores_go_page_by_page() {
    let machine = Machine::new();
    for (string, (_, size)) in STRINGS.iter().enumerate() {
        for repeated in [false, true] {
            for (to, from) in
                [(0, 0), (8, 3), (PAGE - 4 * size, 77), (PAGE - size, PAGE - size), (PAGE - 3 * size, PAGE + 5)]
            {
                for count in [1, 2, 3, 4, 5, 100, 1000] {
                    let case = Repeated { string, repeated, to, from, count, hidden: false };
                    let traps = run_string(&machine, &case, 3);
                    let pages = (to % PAGE + if repeated { count as usize * size } else { *size }).div_ceil(PAGE);
                    assert_eq!(traps, Traps { kept: pages, refused: 0 }, "{string} {repeated} {to} {from} {count}");
                }
            }
        }
    }
}

#[test]
fn an_element_across_pages_is_refused() {
    let machine = Machine::new();
    for (string, (_, size)) in STRINGS.iter().enumerate().filter(|(_, (_, size))| *size > 1) {
        let case = Repeated { string, repeated: true, to: PAGE - 3 * size - 1, from: 40, count: 20, hidden: false };
        assert_eq!(run_string(&machine, &case, 5), Traps { kept: 1, refused: 1 });
        let case = Repeated { to: PAGE - 1, ..case };
        assert_eq!(run_string(&machine, &case, 5), Traps { kept: 0, refused: 1 });
    }
}

#[test]
fn a_source_that_cannot_be_read_is_refused() {
    let machine = Machine::new();
    for string in 4..8 {
        let case = Repeated { string, repeated: true, to: 16, from: 40, count: 200, hidden: true };
        let traps = run_string(&machine, &case, 9);
        assert!(traps.kept == 0 && traps.refused == 1, "{traps:?}");
    }
}

/// Checks the rules for a decoded store:
///
/// * Its bytes lie on one page, and the trap is at one of them.
/// * The instruction writes this memory and nothing else. A string instruction may also write RCX, RSI and RDI.
/// * The instruction has no lock prefix.
fn check(code: &[u8], trap: usize, store: &decode::Store) {
    let end = store.at + store.len();
    assert!(store.len() > 0 && store.at / PAGE == (end - 1) / PAGE && (store.at..end).contains(&trap), "{store:?}");
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    let mut infos = InstructionInfoFactory::new();
    let info = infos.info(&instruction);
    let is_read = |access: OpAccess| matches!(access, OpAccess::Read | OpAccess::CondRead);
    let written: Vec<_> = info.used_memory().iter().filter(|used| !is_read(used.access())).collect();
    let is_string = !matches!(store.what, What::Bytes { .. });
    assert!(
        written.len() == 1 && matches!(written[0].access(), OpAccess::Write | OpAccess::CondWrite),
        "{instruction:?} {written:?}"
    );
    if let What::Bytes { len, .. } = store.what {
        assert!(len == written[0].memory_size().size() && len <= 64 && info.used_memory().len() == 1);
    }
    let counts = [Register::RCX, Register::RSI, Register::RDI];
    for used in info.used_registers() {
        assert!(is_read(used.access()) || is_string && counts.contains(&used.register()), "{instruction:?} {used:?}");
    }
    assert!(!instruction.has_lock_prefix() && instruction.mnemonic() != Mnemonic::INVALID);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: quick_or_full(500, 2000), ..ProptestConfig::default() })]

    #[test]
    fn stores_are_as_the_processor_does_them(
        form in any::<usize>(), style in 0..5, base in 0..16usize, index in 0..16usize, scale in 0..4u32,
        by in prop_oneof![-200..200i32, any::<i32>()], at in 0..3 * PAGE, register in 0..32usize, constant in any::<u64>(),
        seed in any::<u64>(), clear in 0..8u8, mask in prop_oneof![9 => Just(0u8), 1 => 1..8u8],
        at_border in prop_oneof![8 => Just(None), 2 => (1..16usize).prop_map(Some)],
    ) {
        let address = match style {
            0 => Address::Relative,
            1 | 2 => Address::Base(base, by),
            _ => Address::Indexed(base, index, 1 << scale, by),
        };
        let machine = Machine::new();
        let forms = FORMS.get_or_init(forms);
        run(&machine, forms, &Case { form, address, at, register, constant, seed, clear, mask, at_border });
    }

    #[test]
    fn strings_are_as_the_processor_does_them(
        string in 0..STRINGS.len(), repeated in any::<bool>(), to in 0..2 * PAGE, from in 0..2 * PAGE, count in 0..1000u64,
        seed in any::<u64>(),
    ) {
        run_string(&Machine::new(), &Repeated { string, repeated, to, from, count, hidden: false }, seed);
    }
}

/// Decodes random bytes. Most of them are no known store. None of them causes a panic, or gives a store that breaks the rules of `check`.
#[test]
fn random_code_gives_no_wrong_store() {
    decode::prepare();
    let mut random = mixer(u64::from_le_bytes(*b"decoding"));
    let mut code = Box::new(Page([0x90; 2 * PAGE]));
    let mut found = 0;
    // Prefixes and opcodes of known stores and of similar instructions: bytes that are all random would hold hardly any store.
    let likely = [
        0xf0, 0xf2, 0xf3, 0x64, 0x65, 0x66, 0x67, 0x2e, 0x48, 0x4c, 0x0f, 0xc4, 0xc5, 0x62, 0x8f, 0x88, 0x89, 0xc6,
        0xc7, 0xa2, 0xa3, 0xa4, 0xa5, 0xaa, 0xab, 0x11, 0x13, 0x17, 0x29, 0x2b, 0x7e, 0x7f, 0xd6, 0xe7, 0x38, 0x3a,
        0xf1, 0x14, 0x86, 0x01,
    ];
    for round in 0..quick_or_full(100_000, 400_000) {
        let at = if round % 5 == 0 { PAGE - 1 - (random() % 15) as usize } else { 64 };
        for byte in &mut code.0[at..at + 15] {
            let noise = random();
            *byte =
                if noise.is_multiple_of(2) { likely[(noise >> 8) as usize % likely.len()] } else { (noise >> 8) as u8 };
        }
        // All registers but one have the same value, so that most addresses are close to the trap.
        let place = 0x7000_0000_0000 + random() % 8192;
        let mut general: [u64; 16] = std::array::from_fn(|_| place);
        let number = (random() % 16) as usize;
        general[number] = random() % 300;
        let trap = place.wrapping_add(random() % 128) as usize;
        let flags = if random().is_multiple_of(8) { 1 << 10 } else { 0 };
        if let Some(store) = decode_alone(&code, at, &general, flags, trap) {
            found += 1;
            check(&code.0[at..], trap, &store);
            assert!(flags == 0 || matches!(store.what, What::Bytes { .. }));
        }
    }
    println!("{found} stores in random code");
    assert!(found > 100);
}

/// Decodes one instruction that traps at `at`. RBX and RDI point there, RSI points 64 KiB behind it, and RCX is 3.
fn alone(code: &[u8], at: u64, flags: i64) -> Option<decode::Store> {
    decode::prepare();
    let mut page = Box::new(Page([0x90; 2 * PAGE]));
    page.0[..code.len()].copy_from_slice(code);
    let mut general = [0x1111_2222_3333_4444; 16];
    (general[1], general[3], general[6], general[7]) = (3, at, at + 0x10000, at);
    decode_alone(&page, 0, &general, flags, at as usize)
}

#[test]
fn what_is_not_a_plain_store_is_refused() {
    let refused: [(&str, &[u8]); 22] = [
        ("add [rbx], eax", &[0x01, 0x03]),
        ("lock add [rbx], eax", &[0xf0, 0x01, 0x03]),
        ("xchg [rbx], eax", &[0x87, 0x03]),
        ("cmpxchg [rbx], ecx", &[0x0f, 0xb1, 0x0b]),
        ("xrelease mov [rbx], eax", &[0xf3, 0x89, 0x03]),
        ("mov fs:[rbx], eax", &[0x64, 0x89, 0x03]),
        ("mov gs:[rbx], eax", &[0x65, 0x89, 0x03]),
        ("mov [ebx], eax", &[0x67, 0x89, 0x03]),
        ("mov [rbx], ds", &[0x8c, 0x1b]),
        ("mov eax, [rbx]", &[0x8b, 0x03]),
        ("fst dword [rbx]", &[0xd9, 0x13]),
        ("movq [rbx], mm1", &[0x0f, 0x7f, 0x0b]),
        ("sete [rbx]", &[0x0f, 0x94, 0x03]),
        ("push [rbx]", &[0xff, 0x33]),
        ("call [rbx]", &[0xff, 0x13]),
        ("repne stosb", &[0xf2, 0xaa]),
        ("repne movsb", &[0xf2, 0xa4]),
        ("fs rep movsb", &[0x64, 0xf3, 0xa4]),
        ("addr32 rep stosb", &[0x67, 0xf3, 0xaa]),
        ("vmovups [rbx], ymm0 where there is none", &[0xc5, 0xfc, 0x11, 0x03]),
        ("vscatterdps [rbx+zmm1]{k1}, zmm0", &[0x62, 0xf2, 0x7d, 0x49, 0xa2, 0x04, 0x0b]),
        ("fxsave [rbx]", &[0x0f, 0xae, 0x03]),
    ];
    for (text, code) in refused {
        assert!(alone(code, 0x5000_0000_1000, 0).is_none(), "{text}");
    }
    // The plain stores that are closest to some of these are known.
    for (text, code) in
        [("mov [rbx], eax", &[0x89, 0x03][..]), ("rep stosb", &[0xf3, 0xaa]), ("es rep stosb", &[0x26, 0xf3, 0xaa])]
    {
        assert!(alone(code, 0x5000_0000_1000, 0).is_some(), "{text}");
    }
    assert!(alone(&[0xf3, 0xaa], 0x5000_0000_1000, 1 << 10).is_none(), "std; rep stosb");
}

/// A move that needs an aligned address is refused where the address is not aligned: the processor itself has to raise the error.
#[test]
fn aligned_moves_are_aligned() {
    for (text, code) in
        [("movaps [rbx], xmm0", &[0x0f, 0x29, 0x03][..]), ("vmovntdq [rbx], xmm0", &[0xc5, 0xf9, 0xe7, 0x03])]
    {
        assert!(alone(code, 0x5000_0000_1010, 0).is_some(), "{text}");
        assert!(alone(code, 0x5000_0000_1018, 0).is_none(), "{text}");
    }
    assert!(alone(&[0x0f, 0x11, 0x03], 0x5000_0000_1018, 0).is_some(), "movups [rbx], xmm0");
}

#[test]
fn a_copy_from_the_page_itself_is_refused() {
    decode::prepare();
    let mut page = Box::new(Page([0x90; 2 * PAGE]));
    page.0[..2].copy_from_slice(&[0xf3, 0xa4]);
    let to = 0x5000_0000_1800;
    for (from, count, kept) in [
        (to - 1, 4, false),
        (to + 64, 4, false),
        (to - 0x1000, 4, true),
        (to - 0x900, 0x200, false),
        (to + 0x900, 0x900, true),
        (u64::MAX - 2, 8, false),
    ] {
        let mut general = [0; 16];
        (general[1], general[6], general[7]) = (count, from, to);
        assert_eq!(decode_alone(&page, 0, &general, 0, to as usize).is_some(), kept, "{from:x} {count}");
    }
}
